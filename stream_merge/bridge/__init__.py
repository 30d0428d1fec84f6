"""The only package that speaks to the JVM: it takes and returns Python values, frames and opaque handles.

One module a subject: `jvm` (values and errors), `sessions` (sessions and the running query), `table` (Delta's log and
transaction), `statement` (Delta's analysis of a MERGE), `ui` (metrics on the query's node).
Delta's own classes are used as they are compiled, so `private[delta]` and `protected` of Scala do not stop us; every call
was checked against the oldest and the newest supported Delta.
"""
