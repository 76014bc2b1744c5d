"""Writes chat/<name>.json: what transformers makes of some conversations with the template chat/<name>.jinja.

    pip install transformers jinja2
    python make_chat.py [NAME...]

The conversations are in chat/conversations.json, in the form in which Forebay saves them. A render that transformers
refuses is recorded as its error. The clock stands at 2026-01-02 03:04:05 UTC.
"""

import datetime
import json
import sys
from pathlib import Path

from transformers.utils import chat_template_utils

FOLDER = Path(__file__).parent / "chat"


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 2, 3, 4, 5, tzinfo=tz)


def as_transformers(message: dict) -> dict:
    """The message in the form of OpenAI's interface, which templates are written for."""
    out = {"role": message["role"], "content": message.get("content", "")}
    if "reasoning" in message:
        out["reasoning_content"] = message["reasoning"]
    if "tool_calls" in message:
        out["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in message["tool_calls"]
        ]
    for field in ("tool_call_id", "name"):
        if field in message:
            out[field] = message[field]
    return out


def render(template: str, tokens: dict, case: dict) -> dict:
    try:
        rendered, _ = chat_template_utils.render_jinja_template(
            conversations=[[as_transformers(m) for m in case["messages"]]],
            tools=case.get("tools"),
            chat_template=template,
            add_generation_prompt=True,
            **tokens,
            **case.get("options", {}),
        )
        return {"text": rendered[0]}
    except Exception as error:  # whatever a template does wrong
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    chat_template_utils.datetime = Clock
    conversations = json.loads((FOLDER / "conversations.json").read_text())
    sources = json.loads((FOLDER / "sources.json").read_text())
    for name in sys.argv[1:] or sources:
        template = (FOLDER / f"{name}.jinja").read_text()
        tokens = sources[name]["tokens"]
        cases = {title: render(template, tokens, case) for title, case in conversations.items()}
        golden = {"tokens": tokens, "cases": cases}
        (FOLDER / f"{name}.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")
        refused = [title for title, case in cases.items() if "error" in case]
        print(f"{name}: {len(cases)} renders, refused: {refused}")


if __name__ == "__main__":
    main()
