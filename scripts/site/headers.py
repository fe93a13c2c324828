# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The public declarations of the installed headers, each with its comment, as libclang and the text of the headers tell.

A comment belongs to the declaration below it, or to the one on whose line it begins. A comment above several declarations
without an empty line between them belongs to all of them: they are one Group. A comment above an empty line belongs to the
declarations below that have no comment of their own. A header that says that it is internal is left out.
"""
import dataclasses
import pathlib
import re
import subprocess
import sysconfig

import clang.cindex as cindex
from clang.cindex import CursorKind as Kind

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TYPES = {Kind.CLASS_DECL, Kind.STRUCT_DECL, Kind.CLASS_TEMPLATE, Kind.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION, Kind.ENUM_DECL}
VALUES = {Kind.FUNCTION_DECL, Kind.FUNCTION_TEMPLATE, Kind.VAR_DECL, Kind.TYPE_ALIAS_DECL, Kind.TYPE_ALIAS_TEMPLATE_DECL,
          Kind.TYPEDEF_DECL, Kind.CONCEPT_DECL}
MEMBERS = {Kind.CXX_METHOD, Kind.CONSTRUCTOR, Kind.DESTRUCTOR, Kind.CONVERSION_FUNCTION, Kind.FIELD_DECL, Kind.FRIEND_DECL,
           Kind.ENUM_CONSTANT_DECL} | VALUES | TYPES
HIDDEN_NAMESPACES = {"internal", "detail"}
MACRO = re.compile(r"#define (GRADWIRE_\w+)(\([^)]*\))?")


@dataclasses.dataclass
class Declaration:
    name: str
    text: str  # as the header has it, without a body
    first: int  # lines in the header, from 1
    last: int
    kind: str  # function, type, value, member, enumerator, macro
    spelled_out: bool = False  # says by itself what it does: a destructor, a deleted or defaulted function, an override
    groups: list["Group"] = dataclasses.field(default_factory=list)  # of a type's members
    fields_only: bool = False


@dataclasses.dataclass
class Group:
    comment: list[str]
    declarations: list[Declaration]
    section: bool = False  # the comment stands by itself, above an empty line, and is about all that follows


@dataclasses.dataclass
class Header:
    path: str  # gradwire/store/store.h
    comment: list[str]
    groups: list[Group]
    lines: list[str]

    @property
    def room(self):
        folders = self.path.split("/")[1:-1]
        return folders[0] if folders else "gradwire"  # a header above the rooms


def installed_headers():
    for path in sorted((ROOT / "gradwire").glob("*.h")):
        yield path.relative_to(ROOT).as_posix()
    rooms = re.findall(r"installed_rooms ([\w ]+)\)", (ROOT / "cmake" / "GradwireInstall.cmake").read_text())
    for room in " ".join(rooms).split():
        for path in sorted((ROOT / "gradwire" / room).rglob("*.h")):
            if not path.name.endswith("_internal.h") and "_test" not in path.name:
                yield path.relative_to(ROOT).as_posix()


def compiler_includes():
    """The folders in which GCC looks for the standard library, which libclang's package does not bring."""
    said = subprocess.run(["g++", "-std=c++20", "-E", "-x", "c++", "-v", "/dev/null"], capture_output=True, text=True, check=True)
    listed = said.stderr.split("#include <...> search starts here:")[1].split("End of search list.")[0]
    return listed.split()


def torch_includes(torch_dir):
    include = pathlib.Path(torch_dir) / "include"
    return [str(include), str(include / "torch" / "csrc" / "api" / "include")]


def parse(headers, torch_dir):
    text = "".join(f'#include "{header}"\n' for header in headers)
    arguments = ["-x", "c++", "-std=c++20", f"-I{ROOT}", "-Wno-everything", "-nostdinc++"]
    for folder in [*torch_includes(torch_dir), sysconfig.get_path("include"), *compiler_includes()]:
        arguments += ["-isystem", folder]
    source = str(ROOT / "all_headers.cc")  # in memory only
    unit = cindex.Index.create().parse(
        source, arguments, unsaved_files=[(source, text)],
        options=cindex.TranslationUnit.PARSE_SKIP_FUNCTION_BODIES)
    errors = [str(problem) for problem in unit.diagnostics if problem.severity >= cindex.Diagnostic.Error]
    if errors:
        raise SystemExit("site: libclang cannot read the headers:\n" + "\n".join(errors[:10]))
    return unit


def blocks_of_comments(lines):
    """By the line below it: the comment lines that end directly above that line, which may be empty."""
    blocks, block = {}, []
    for number, line in enumerate(lines, 1):
        if line.strip().startswith("//"):
            block.append(re.sub(r"^\s*// ?", "", line.rstrip()))
        else:
            if block:
                blocks[number] = block
            block = []
    return blocks


def trailing_comment(lines, declaration):
    """The comment on the declaration's last line (a type's first) and its continuation, aligned below it."""
    line = lines[(declaration.first if declaration.kind == "type" else declaration.last) - 1]
    found = re.search(r"\S.*?\s//\s(.*)$", line)
    if not found:
        return []
    column, comment = line.rindex("//", 0, found.start(1)), [found.group(1)]
    for line in lines[declaration.last:]:
        if line.strip().startswith("//") and line.index("//") == column:
            comment.append(line.strip()[2:].strip())
        else:
            break
    return comment


def signature(lines, cursor, first, last):
    """The declaration's text: up to its body, or to the semicolon."""
    text = "\n".join(lines[first - 1:last])
    indent = len(lines[first - 1]) - len(lines[first - 1].lstrip())
    text = "\n".join(line[indent:] if line[:indent].isspace() or not indent else line for line in text.split("\n"))
    text = re.sub(r"\s*//.*$", "", text, flags=re.MULTILINE)
    if cursor.kind in TYPES and cursor.kind != Kind.ENUM_DECL:
        return text.split("{")[0].split(";")[0].strip()
    if cursor.kind in {Kind.CONSTRUCTOR}:
        text = re.sub(r"\)\s*(noexcept)?\s*:\s[^:].*", r") \1", text, flags=re.DOTALL)
    if cursor.kind not in {Kind.FIELD_DECL, Kind.VAR_DECL, Kind.ENUM_DECL}:
        text = without_body(text)
    return text.strip().rstrip(",") if cursor.kind == Kind.ENUM_CONSTANT_DECL else text.strip()


def without_body(text):
    """Cuts a function's body: the first brace outside parentheses that no default argument opens."""
    depth = 0
    for at, letter in enumerate(text):
        if letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif letter == "{" and depth == 0 and "(" in text[:at]:
            return text[:at].rstrip() + ";"
    return text


def is_spelled_out(cursor, text):
    if cursor.kind == Kind.DESTRUCTOR or re.search(r"=\s*(delete|default)\b", text):
        return True
    if cursor.kind == Kind.CONSTRUCTOR and (cursor.is_copy_constructor() or cursor.is_move_constructor()):
        return True
    if cursor.spelling == "operator=" and re.search(rf"\(\s*(const )?{cursor.semantic_parent.spelling}\b", text):
        return True
    return cursor.kind not in TYPES and re.search(r"\b(override|final)\b[^()]*;?$", text) is not None


def name_of(cursor):
    name = cursor.spelling or cursor.displayname
    if cursor.kind == Kind.FRIEND_DECL:
        inner = list(cursor.get_children())
        name = inner[0].spelling if inner else ""
    return re.sub(r"<.*>$", "", name) if not name.startswith("operator") else name


class Reader:
    """Collects the declarations of one header after another."""

    def __init__(self, unit, headers):
        self.lines = {header: (ROOT / header).read_text().split("\n") for header in headers}
        self.comments = {header: blocks_of_comments(lines) for header, lines in self.lines.items()}
        self.found = {header: [] for header in headers}
        self.namespaces(unit.cursor)

    def header_of(self, cursor):
        file = cursor.location.file
        if file is None:
            return None
        name = pathlib.Path(file.name)
        path = name.relative_to(ROOT).as_posix() if name.is_relative_to(ROOT) else file.name
        return path if path in self.found else None

    def namespaces(self, cursor):
        for child in cursor.get_children():
            header = self.header_of(child)
            if header is None:
                continue
            if child.kind == Kind.NAMESPACE:
                if child.spelling and child.spelling not in HIDDEN_NAMESPACES:
                    self.namespaces(child)
            elif child.kind in TYPES | VALUES and child.semantic_parent.kind == Kind.NAMESPACE:
                made = self.declaration(header, child)
                if made is not None:
                    self.found[header].append(made)

    def declaration(self, header, cursor):
        lines = self.lines[header]
        first, last = cursor.extent.start.line, cursor.extent.end.line
        # Attributes and requires clauses above, which the extent may leave out.
        while first > 1 and re.match(r"\s*(template\s*<|requires\b|\[\[nodiscard\]\]$)", lines[first - 2]):
            first -= 1
        text = signature(lines, cursor, first, last)
        if cursor.kind in TYPES and not cursor.is_definition():
            return None  # announced here, declared elsewhere
        if re.match(r"[A-Z_]+\(", text) or cursor.spelling.startswith("gtest_"):
            return None  # a test of GoogleTest, whose name says what it proves
        kind = "type" if cursor.kind in TYPES else "function" if "FUNCTION" in cursor.kind.name else "value"
        made = Declaration(name_of(cursor), text, first, last, kind, is_spelled_out(cursor, text))
        if cursor.kind in TYPES and cursor.is_definition() and cursor.kind != Kind.ENUM_DECL:
            self.members(header, cursor, made)
        return made

    def members(self, header, cursor, made):
        public, found = cursor.kind == Kind.STRUCT_DECL or made.text.lstrip().startswith("struct") or \
            re.search(r"\bstruct \w+", made.text) is not None, []
        for child in cursor.get_children():
            if child.kind == Kind.CXX_ACCESS_SPEC_DECL:
                public = child.access_specifier in {cindex.AccessSpecifier.PUBLIC, cindex.AccessSpecifier.PROTECTED}
            elif public and child.kind in MEMBERS and child.location.line >= made.first:
                inner = self.declaration(header, child)
                if inner is not None and inner.name:
                    found.append(inner)
        made.fields_only = bool(found) and all(
            member.kind == "value" and "(" not in member.text.split("=")[0].split("{")[0] for member in found)
        made.groups = self.grouped(header, found, made.first)

    def section_comment(self, header, begin, end):
        """The comment between two lines that stands above an empty line."""
        lines = range(begin, end)
        found = [line for line in lines if line in self.comments[header] and not self.lines[header][line - 1].strip()]
        return self.comments[header][found[-1]] if found else []

    def adjacent(self, header, above, below):
        return all(line.strip() for line in self.lines[header][above.last:below.first - 1])

    def grouped(self, header, declarations, begin):
        groups, above = [], None
        for declaration in sorted(declarations, key=lambda one: one.first):
            comment = self.comments[header].get(declaration.first) or trailing_comment(self.lines[header], declaration)
            section = [] if comment else self.section_comment(header, begin, declaration.first)
            if not comment and not section and groups and (groups[-1].section or self.adjacent(header, above, declaration)):
                groups[-1].declarations.append(declaration)
            else:
                groups.append(Group(comment or section, [declaration], bool(section)))
            above, begin = declaration, declaration.last
        return groups

    def macros(self, header):
        for number, line in enumerate(self.lines[header], 1):
            found = MACRO.match(line)
            if found:
                yield Declaration(found.group(1), "#define " + found.group(1) + (found.group(2) or ""), number, number, "macro")

    def header(self, header):
        lines = self.lines[header]
        opening = []
        for line in lines:
            if not line.startswith("//"):
                break
            if not line.startswith("// SPDX-"):
                opening.append(re.sub(r"^// ?", "", line))
        macros = [macro for macro in self.macros(header) if macro.first in self.comments[header]]
        begin = next((number for number, line in enumerate(lines, 1) if line.startswith("#pragma once")), 1)
        return Header(header, opening, self.grouped(header, [*self.found[header], *macros], begin), lines)


def read(torch_dir):
    headers = list(installed_headers())
    reader = Reader(parse(headers, torch_dir), headers)
    found = [reader.header(header) for header in headers]
    return [header for header in found if not re.search(r"\bInternal to\b", " ".join(header.comment))]


def mentions(comments, name):
    word = re.compile(rf"(?<![\w]){re.escape(name)}(?![\w])")
    return any(word.search(line) for comment in comments for line in comment)


def undocumented(headers):
    """`path:line: name` of every public declaration that no comment describes."""
    for header in headers:
        yield from missing(header, header.groups, [header.comment])


def missing(header, groups, around):
    for group in groups:
        for declaration in group.declarations:
            inside = [*around, group.comment]
            below = list(missing(header, declaration.groups, inside))
            documented = (group.comment or declaration.spelled_out or mentions(around, declaration.name)
                          or (declaration.groups and not below))  # every member has a comment: plain options
            if not documented:
                yield f"{header.path}:{declaration.first}: {declaration.name} has no comment"
            if not group.section:
                yield from below
