"""The OpenAPI description as an HTML page, without scripts or external resources."""

from __future__ import annotations

import json
from html import escape
from typing import Any

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
  color-scheme: light dark; }
h2 { margin-top: 3rem; border-bottom: 1px solid #8886; }
h3 { margin: 2rem 0 .3rem; font-size: 1rem; }
code, pre { font: .9em ui-monospace, monospace; }
pre { background: #8882; padding: .8rem; overflow-x: auto; border-radius: .4rem; }
th, td { text-align: left; vertical-align: top; padding: .1rem 1rem .1rem 0; }
.method { display: inline-block; min-width: 4.5rem; font-weight: 700; }
nav a { margin-right: 1rem; }
""".lstrip()


def page(described: dict[str, Any]) -> str:
    """The page as HTML.

    >>> "<h1>cats 2</h1>" in page({"info": {"title": "cats", "version": "2"}, "paths": {}})
    True
    """
    info = described["info"]
    groups: dict[str, list[str]] = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            shown = _operation(method.upper(), path, operation)
            groups.setdefault(operation["tags"][0], []).append(shown)
    told = {tag["name"]: tag.get("description", "") for tag in described.get("tags", ())}
    names = [name for name in told if name in groups]
    links = "".join(f'<a href="#{_anchor(name)}">{escape(name)}</a>' for name in names)
    parts = (
        f'<h2 id="{_anchor(name)}">{escape(name)}</h2><p>{escape(told[name])}</p>'
        + "".join(groups[name])
        for name in names
    )
    title = f"{escape(info['title'])} {escape(info['version'])}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}</title><link rel="stylesheet" href="/docs.css"></head><body>'
        f"<h1>{title}</h1><p>{escape(info.get('summary', ''))} "
        'The same for programs: <a href="/openapi.json">openapi.json</a>.</p>'
        f"<nav>{links}</nav>{''.join(parts)}</body></html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    name = escape(operation["operationId"])
    rows = "".join(map(_parameter, operation.get("parameters", ())))
    told = escape(operation.get("description", "")).replace("\n\n", "<br>")
    content = operation.get("requestBody", {}).get("content", {})
    kinds = " or ".join(f"<code>{escape(kind)}</code>" for kind in content)
    example = content.get("application/json", {}).get("example")
    answers = ", ".join(
        f"{escape(status)} {escape(answer['description'])}"
        for status, answer in operation["responses"].items()
    )
    return (
        f'<section id="{name}"><h3><span class="method">{method}</span>'
        f"<code>{escape(path)}</code></h3>"
        f"<p><b>{escape(operation.get('summary', ''))}.</b> {told}</p>"
        + (f"<table>{rows}</table>" if rows else "")
        + (f"<p>Takes {kinds}.</p>" if kinds else "")
        + (f"<pre>{escape(_short(json.dumps(example, indent=1)))}</pre>" if example else "")
        + f"<p><small>Answers: {answers}.</small></p></section>"
    )


def _parameter(parameter: dict[str, Any]) -> str:
    must = "" if parameter.get("required") else ", if you like"
    told = parameter.get("description", "")
    return (
        f"<tr><th><code>{escape(parameter['name'])}</code></th>"
        f"<td>{escape(parameter['in'])}{must}</td><td>{escape(told)}</td></tr>"
    )


def _short(text: str, most: int = 900) -> str:
    return text if len(text) <= most else f"{text[:most]} ..."


def _anchor(name: str) -> str:
    return escape(name.lower().replace(" ", "-"), quote=True)
