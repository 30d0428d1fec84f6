"""Decides which topics one pipeline takes, and by which sections; pure functions of what was found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from stream_merge.cli.discover.findings import Family, Finding
from stream_merge.cli.errors import ExitCode, PipelineError


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Topics that one section `[[tables]]` takes.

    Attributes:
        source: The value of its `source`.
        target: That of its `target`, after the folder of the tables.
        findings: What was found in the topics.
        empty: Topics without records that the pattern matches, too.
    """

    source: str
    target: str
    findings: tuple[Finding, ...]
    empty: tuple[str, ...] = ()

    @property
    def is_pattern(self) -> bool:
        """Whether the section takes topics by a pattern."""
        return self.source.startswith("re:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a pipeline file has.

    Attributes:
        family: What its section `[decode]` is for.
        groups: Its sections, those with patterns first.
        topics: The topics that it reads, if it names them.
        topic_pattern: The pattern by which it reads them, if all topics that match are taken.
        others: Topics for a pipeline of another family.
        refused: Topics that no pipeline can take as they are, in the form of the section that they would have.
        foreign: Topics without rows of tables.
    """

    family: Family
    groups: tuple[Group, ...]
    topics: tuple[str, ...]
    topic_pattern: str | None
    others: tuple[Finding, ...]
    refused: tuple[Group, ...]
    foreign: tuple[Finding, ...]

    @property
    def findings(self) -> list[Finding]:
        """What was found in the topics that are taken."""
        return [finding for group in self.groups for finding in group.findings]


def make_plan(findings: Sequence[Finding], all_topics: Collection[str]) -> Plan:
    """Return the plan of a pipeline for the topics that it can take.

    Topics that need another section [decode] than most are left for a pipeline of their own.

    Args:
        findings: What was found, by topic.
        all_topics: The names of all topics that the broker has.

    Raises:
        PipelineError: No topic can be taken.
    """
    found = Counter(finding.family for finding in findings if finding.is_taken)
    if not found:
        raise PipelineError(_nothing_to_take(findings), ExitCode.CANNOT_START)
    family = max((each for each in Family if found[each]), key=lambda each: found[each])
    taken = [finding for finding in findings if finding.is_taken and finding.family is family]
    refused = [finding for finding in findings if not finding.is_taken and finding.foreign is None]
    of_rows = [*taken, *(finding for finding in refused if not finding.is_empty)]
    by_name = len({_prefix(finding.topic) for finding in of_rows}) > 1
    empty = [finding.topic for finding in refused if finding.is_empty]
    groups = _groups(taken, empty, by_name=by_name)
    pattern = _topic_pattern(groups, all_topics)
    covered = {topic for group in groups for topic in group.empty}
    return Plan(
        family=family,
        groups=tuple(groups),
        topics=tuple(finding.topic for finding in taken),
        topic_pattern=pattern,
        others=tuple(finding for finding in findings if finding.is_taken and finding.family is not family),
        refused=tuple(_named(finding, by_name=by_name) for finding in refused if finding.topic not in covered),
        foreign=tuple(finding for finding in findings if finding.foreign is not None),
    )


def escaped(topic: str) -> str:
    """Return a pattern, in Java and in Python, for the name of a topic, whose only special character is the point."""
    return topic.replace(".", r"\.")


def _groups(taken: Sequence[Finding], empty: Sequence[str], *, by_name: bool) -> list[Group]:
    """Return a section for all topics of a prefix that tell their columns, and one for each of the others."""
    by_prefix: dict[str, list[Finding]] = {}
    singles: list[Finding] = []
    for finding in taken:
        if finding.needs_columns:
            singles.append(finding)
        else:
            by_prefix.setdefault(_prefix(finding.topic), []).append(finding)
    groups = []
    for prefix, members in by_prefix.items():
        also = tuple(topic for topic in empty if _prefix(topic) == prefix)
        if len(members) + len(also) > 1:
            start = f"{escaped(prefix)}\\." if prefix else ""
            source = f"(?P<topic>{start}[^.]+)" if by_name else f"{start}(?P<table>[^.]+)"
            target = "{topic}" if by_name else "{table}"
            groups.append(Group(source=f"re:{source}", target=target, findings=tuple(members), empty=also))
        else:
            groups += [_named(member, by_name=by_name) for member in members]
    return [
        *sorted(groups, key=lambda group: not group.is_pattern),
        *(_named(each, by_name=by_name) for each in singles),
    ]


def _named(finding: Finding, *, by_name: bool) -> Group:
    table = finding.topic if by_name else finding.topic.rpartition(".")[2]
    return Group(source=finding.topic, target=table, findings=(finding,))


def _topic_pattern(groups: Sequence[Group], all_topics: Collection[str]) -> str | None:
    """Return a pattern of topics if there are sections with one, and no topic matches that no section takes."""
    prefixes = [_prefix(group.findings[0].topic) for group in groups if group.is_pattern]
    if not prefixes or "" in prefixes:
        return None
    names = [escaped(prefix) for prefix in prefixes]
    pattern = f"{names[0]}\\.[^.]+" if len(names) == 1 else f"({'|'.join(names)})\\.[^.]+"
    matched = {topic for topic in all_topics if re.fullmatch(pattern, topic)}
    taken = {finding.topic for group in groups for finding in group.findings}
    empty = {topic for group in groups for topic in group.empty}
    return pattern if taken <= matched <= taken | empty else None


def _prefix(topic: str) -> str:
    return topic.rpartition(".")[0]


def _nothing_to_take(findings: Sequence[Finding]) -> str:
    """Return a sentence that says why none of the topics can be taken."""
    reasons = [
        f"{finding.topic}: {'; '.join(finding.faults) if finding.foreign is None else finding.foreign}"
        for finding in findings
    ]
    shown = "\n  ".join(reasons[:20])
    more = f"\n  and {len(reasons) - 20} more" if len(reasons) > 20 else ""
    return f"No topic can be taken as it is, so no file is written.\n  {shown}{more}"
