# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Pages of the Python reference: one a public module, from the sources and stubs, which are read and not run."""
import ast
import pathlib
import re

import griffe

PROGRAMS = {"gradwire.report"}  # run with python -m; their modules are for themselves
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def load():
    return griffe.load("gradwire", search_paths=[str(ROOT / "python")], allow_inspection=False)


def target(thing):
    return thing.final_target if thing.is_alias else thing


def modules(module):
    """The modules that users import: those with an __all__ of names, in none of whose parts an underscore leads."""
    if module.exports:
        yield module
    for inner in module.modules.values():
        if not inner.is_alias and not inner.name.startswith("_") and inner.path not in PROGRAMS:
            yield from modules(inner)


def exported(module):
    """(name, object) of what the module declares for the first time: what it passes on from a public module is shown there."""
    for name in map(str, module.exports):
        thing = target(module[name])
        if not thing.is_module:
            yield name, thing


def members(cls):
    for name, member in cls.members.items():
        if not name.startswith("_") and not target(member).is_module:
            yield name, target(member)


def is_value(thing):
    return thing.is_attribute and "property" not in thing.labels


def overloads_of(thing):
    return (thing.overloads or []) if thing.is_function else []


def documentation(thing):
    """The docstring; for a hook of the C++ runtime, the text that it is made with; for a second name, the first."""
    if thing.docstring:
        return thing.docstring.value
    for one in overloads_of(thing):
        if one.docstring:
            return one.docstring.value
    value = str(thing.value) if thing.is_attribute and thing.value is not None else ""
    if re.fullmatch(r"[A-Za-z_]\w*", value):
        return f"The same as `{value}`."
    text = re.search(r"(?:\"\"\"|'|\")((?:(?!\"\"\").)*?)(?:\"\"\"|'|\")(?:, [^,]*)?\)$", value, re.DOTALL)
    return text.group(1).replace("\\n", "\n") if text and " " in text.group(1) else ""


def inherited(cls, name):
    """The docstring of the method of a base class of this package that the class overrides."""
    texts = [documentation(target(base.members[name])) for base in cls.mro() if name in base.members]
    return next(filter(None, texts), "")


def undocumented(package):
    seen = set()
    for module in modules(package):
        if not module.docstring:
            yield f"{module.path}: the module has no docstring"
        for name, thing in exported(module):
            if thing.path in seen:
                continue
            seen.add(thing.path)
            text = documentation(thing)
            if not text:
                yield f"{module.path}.{name}: no docstring"
            if thing.is_class:
                for inner, member in members(thing):
                    # Values are arguments of the constructor, or enumerators: the class describes them.
                    if not is_value(member) and not documentation(member) and not inherited(thing, inner) \
                            and not re.search(rf"\b{inner}\b", text):
                        yield f"{module.path}.{name}.{inner}: no docstring, and that of {name} does not name it"


def signature(name, thing):
    return "\n".join(one_signature(name, one) for one in overloads_of(thing) or [thing])


def one_signature(name, thing):
    if thing.is_class:
        bases = ", ".join(str(base) for base in thing.bases)
        made = thing.members.get("__init__")
        arguments = arguments_of(target(made)) if made is not None and target(made).is_function and not overloads_of(target(made)) else ""
        return f"class {name}({bases})" + (f"\n{name}({arguments})" if arguments else "")
    if thing.is_function:
        returned = f" -> {thing.returns}" if thing.returns is not None else ""
        return wrapped(f"{name}(", arguments_of(thing), f"){returned}")
    annotation = f": {thing.annotation}" if thing.annotation is not None else ""
    return f"{name}{annotation}"


def arguments_of(function):
    parts, marked = [], False
    for parameter in function.parameters:
        kind = parameter.kind.value
        if parameter.name in {"self", "cls"}:
            continue
        if kind == "keyword-only" and not marked:
            parts.append("*")
            marked = True
        text = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "") + parameter.name
        marked = marked or kind == "variadic positional"
        if parameter.annotation is not None:
            text += f": {parameter.annotation}"
        if parameter.default is not None and not kind.startswith("variadic"):
            text += f" = {parameter.default}"
        parts.append(text)
    return ", ".join(parts)


def wrapped(begin, arguments, end):
    if len(begin + arguments + end) <= 100 or not arguments:
        return begin + arguments + end
    depth, parts, part = 0, [], ""
    for letter in arguments:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    return begin + "\n    " + ",\n    ".join([*parts, part.strip()]) + ",\n" + end


def prose(text):
    """A docstring as Markdown: indented lines stay as they are."""
    lines, parts = text.strip().split("\n"), []
    while lines:
        if lines[0].startswith("    "):
            block = []
            while lines and (lines[0].startswith("    ") or (not lines[0].strip() and len(lines) > 1 and lines[1].startswith("    "))):
                block.append(lines.pop(0)[4:])
            parts += ["", "```python", *block, "```", ""]
        else:
            line = lines.pop(0)
            parts.append(re.sub(r"(`[^`]*`)|([*<>\[\]]|(?<!\w)_|_(?!\w))", lambda found: found.group(1) or "\\" + found.group(2), line))
    return parts


def opening(module):
    """The module's docstring as the file has it: griffe's lacks the indentation of examples."""
    return ast.get_docstring(ast.parse(pathlib.Path(module.filepath).read_text()), clean=False) or ""


def page(module, shown_at):
    lines = [f"# {module.path}", "", *prose(opening(module))]
    passed_on = []
    for name, thing in exported(module):
        if shown_at[thing.path] != module.path:
            passed_on.append((name, shown_at[thing.path]))
            continue
        lines += ["", f"## {name} {{#{name.lower()}}}", "", "```python", signature(name, thing), "```", "", *prose(documentation(thing))]
        if thing.is_class:
            lines += class_members(name, thing)
    if passed_on:
        lines += ["", "## Names from other modules", ""]
        lines += [f"- [`{name}`]({where}.md#{name.lower()})" for name, where in passed_on]
    return "\n".join(lines) + "\n"


def class_members(name, cls):
    lines, silent = [], []
    for inner, member in members(cls):
        text = documentation(member) or inherited(cls, inner)
        if not text:
            silent.append(signature(inner, member))
            continue
        lines += ["", f"### {inner} {{#{name.lower()}-{inner.lower()}}}", "", "```python", signature(inner, member), "```", "", *prose(text)]
    if silent:
        lines = ["", "```python", *silent, "```", *lines]
    return lines


def pages(package):
    """(path below api/python/, Markdown). A name is shown on the page of the shortest module that exports it."""
    public = sorted(modules(package), key=lambda module: (module.path.count("."), module.path))
    shown_at = {}
    for module in public:
        for _, thing in exported(module):
            shown_at.setdefault(thing.path, module.path)
    for module in public:
        yield f"{module.path}.md", page(module, shown_at)


def overview(package):
    public = sorted(modules(package), key=lambda module: module.path)
    lines = ["# Python reference", "", "Every public module has a page. [The Python package](../../python.md) says what differs from PyTorch.", ""]
    for module in public:
        first = module.docstring.value.strip().split("\n")[0] if module.docstring else ""
        lines.append(f"- [`{module.path}`]({module.path}.md)  \n  {first}")
    return "\n".join(lines) + "\n"
