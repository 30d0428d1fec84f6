"""The looks of the page, its script, and the policy that lets a browser run and load nothing else."""

from __future__ import annotations

import base64
import hashlib

STYLE = """
:root { --ink: #24292f; --faint: #667079; --line: #dde1e5; --paper: #f6f7f8; --card: #fff; --link: #0060a0;
  --warn: #8a5a00; --warn-back: #fff3d6; --bad: #b3261e; --good: #00734f;
  --source: #56b4e9; --locate: #0072b2; --stage: #e69f00; --rest: #9aa0a6; --commit: #009e73; --maintenance: #cc79a7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dfe3e7; --faint: #96a0aa; --line: #343a41; --paper: #14171a; --card: #1d2125; --link: #7cc0f2;
    --warn: #f2c14e; --warn-back: #3a2f12; --bad: #ff8a80; --good: #4cc79b;
    --source: #7cc7f2; --locate: #2f86c6; --stage: #e0a020; --rest: #7b838b; --commit: #2fb388;
    --maintenance: #d58fb8; }
}
* { box-sizing: border-box; }
html { color-scheme: light dark; -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.25rem 1rem 3rem; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.15rem; margin: 0 0 .9rem; }
h3 { font-size: .95rem; margin: 0 0 .5rem; }
h1, h2, h3, td, th, dd, li, code, p { overflow-wrap: anywhere; }
p { margin: .4rem 0; }
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
header { margin-bottom: 1.25rem; }
section:last-of-type { margin-bottom: .5rem; }
section > :last-child { margin-bottom: 0; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: 1rem;
  margin: 1.25rem 0; }
.faint { color: var(--faint); font-weight: normal; font-size: .9rem; }
.problem { color: var(--faint); font-style: italic; }
.notice { color: var(--warn); background: var(--warn-back); border-radius: .4rem; padding: .5rem .75rem; }
.attention, .attention dd, .attention th, .attention td { color: var(--warn); }
.state { font-size: .85rem; font-weight: 600; vertical-align: middle; border: 1px solid; border-radius: 1rem;
  padding: .1rem .6rem; color: var(--faint); }
.state.running { color: var(--good); }
.state.retrying, .state.stopping { color: var(--warn); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(10rem, 45%), 1fr)); gap: .9rem 1rem;
  margin: .9rem 0; }
.tiles div { display: flex; flex-direction: column; justify-content: space-between; }
.tiles dt { color: var(--faint); font-size: .82rem; }
.tiles dd { margin: 0; font-size: 1.2rem; font-variant-numeric: tabular-nums; }
.phases { margin: 1rem 0; }
.phases p { margin: .35rem 0 0; }
.bar { display: block; width: 100%; height: .8rem; border-radius: .2rem; }
.key { white-space: nowrap; margin-right: .8rem; font-size: .85rem; color: var(--faint); }
.key::before { content: ""; display: inline-block; width: .7em; height: .7em; border-radius: .15em;
  margin-right: .35em; }
rect.source { fill: var(--source); } .key.source::before { background: var(--source); }
rect.locate { fill: var(--locate); } .key.locate::before { background: var(--locate); }
rect.stage { fill: var(--stage); } .key.stage::before { background: var(--stage); }
rect.rest { fill: var(--rest); } .key.rest::before { background: var(--rest); }
rect.commit { fill: var(--commit); } .key.commit::before { background: var(--commit); }
rect.maintenance { fill: var(--maintenance); } .key.maintenance::before { background: var(--maintenance); }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: .9rem 2rem; }
.panel { border-top: 1px solid var(--line); padding-top: .7rem; margin-top: .7rem; }
.panel dl { margin: 0; }
.panel dl div { display: flex; gap: .8rem; padding: .1rem 0; }
.panel dt { color: var(--faint); flex: 0 0 7.5rem; }
.panel dd { margin: 0; white-space: pre-line; min-width: 0; }
.quarantine ul { margin: .3rem 0; padding-left: 1.2rem; }
code { font: .85em/1.4 ui-monospace, monospace; white-space: pre-wrap; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { text-align: right; padding: .28rem .5rem; border-bottom: 1px solid var(--line); font-weight: normal; }
th:first-child, td:first-child { padding-left: 0; }
thead th { color: var(--faint); font-size: .82rem; white-space: nowrap; }
tbody td { white-space: nowrap; }
th:first-child { text-align: left; }
th.part { padding-left: 1.2rem; color: var(--faint); }
.list-frame { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .4rem 1rem .6rem; }
.list tbody tr:last-child > * { border-bottom: none; }
.list td.problem { text-align: left; }
.list tbody th { min-width: 9rem; }
.commits :is(td, th):nth-child(-n+3) { text-align: left; }
.commits :is(td, th):last-child { text-align: left; min-width: 5rem; width: 22%; }
.commits .bar { height: .6rem; }
.at-rest { border-left: .3rem solid var(--warn); }
.resting td:last-child { text-align: left; white-space: normal; min-width: 20rem; overflow-wrap: anywhere; }
.other td { color: var(--faint); }
.gone::before { content: "The pipeline does not answer; this is its last state."; display: block; padding: .5rem 1rem;
  color: var(--bad); background: var(--card); border-bottom: 1px solid var(--line); position: sticky; top: 0; }
"""

REFRESH_SECONDS = 5

SCRIPT = f"""
setInterval(async () => {{
  try {{
    const answer = await fetch(location.pathname, {{ cache: "no-store", signal: AbortSignal.timeout(4000) }});
    if (!answer.ok) throw new Error(answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.querySelector("main").replaceChildren(...page.querySelector("main").childNodes);
    document.body.className = "";
  }} catch (error) {{
    document.body.className = "gone";
  }}
}}, {1000 * REFRESH_SECONDS});
"""
"""Replaces what changes, so that the place to which somebody has scrolled stays."""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


FILE_POLICY = f"default-src 'none'; style-src {_hash(STYLE)}; base-uri 'none'; form-action 'none'"
"""The policy of a page in a file: no script at all."""

SERVED_POLICY = f"{FILE_POLICY}; script-src {_hash(SCRIPT)}; connect-src 'self'; frame-ancestors 'none'"
"""The policy of a page that a server makes."""
