"""Makes all calls to the JVM; takes and returns Python values, frames and opaque handles.

One module for each subject: `jvm` (values and errors), `sessions` (sessions and the running query), `table` (Delta's
log), `transaction` (its transaction), `statement` (Delta's analysis of a MERGE), `ui` (metrics on the query's node).
Delta's compiled classes are used as they are, so Scala's `private[delta]` and `protected` do not apply. Every call was
checked with the oldest and the newest supported Delta.
"""
