# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Pages of the C++ reference: one a header, in Markdown."""
import re
import textwrap

COLUMNS = 84  # of comments within a declaration
ROOMS = {
    "base": "Element types, reductions, errors, deadlines, logging, trace points.",
    "kernels": "Loops over raw memory, chosen at run time by what the processor can do.",
    "store": "Keys and values that ranks share before they can communicate with each other.",
    "backend": "One rank's membership in a set of ranks: channels, collectives, messages, shared memory.",
    "compress": "Codecs, memories of the compression error, exchanges.",
    "process_group": "The same over tensors, asynchronous; how a process becomes a rank.",
    "functional": "Collectives that autograd differentiates.",
    "ddp": "DistributedDataParallel, its buckets and its hooks.",
    "hooks": "Ready-made hooks, and their names.",
    "nn": "Layers whose ranks communicate.",
    "amp": "Loss scaling.",
    "optim": "Optimizers over several ranks.",
    "testing": "Tools with which users test their training programs.",
}
FRONT_DOORS = ["gradwire/process_group/init.h", "gradwire/ddp/distributed_data_parallel.h", "gradwire/ddp/ddp_options.h",
               "gradwire/ddp/comm_hook.h", "gradwire/hooks/registry.h", "gradwire/process_group/process_group.h",
               "gradwire/backend/backend.h", "gradwire/base/error.h"]
WORD = re.compile(r"(`[^`]*`)|(?<![\w/.])((?:\w+::)*[A-Z]\w+)((?:::\w+)*(?:\(\))?)|([\\*_<>\[\]#|])")


def page_of(path):
    return path.removeprefix("gradwire/").removesuffix(".h") + ".md"


def anchor(*names):
    return re.sub(r"[^a-z0-9]+", "-", " ".join(names).lower().replace("operator", "op ")).strip("-") or "op"


class Pages:
    """Makes the pages of `headers`. Types that they declare become links wherever comments name them."""

    def __init__(self, headers):
        self.headers = headers
        self.types = {}
        for header in headers:
            for group in header.groups:
                for declaration in group.declarations:
                    if declaration.kind == "type":
                        self.types.setdefault(declaration.name, (header.path, anchor(declaration.name)))

    def all(self):
        """(path below api/cpp/, Markdown) of every page."""
        for header in self.headers:
            yield page_of(header.path), self.page(header)

    def overview(self):
        lines = ["# C++ reference", "",
                 "Every public header has a page. The text is the comment in the header. These headers come first:", ""]
        by_path = {header.path: header for header in self.headers}
        lines += [f"- [`{path}`]({page_of(path)})  \n  {self.sentence(by_path[path])}" for path in FRONT_DOORS]
        rooms = dict.fromkeys(header.room for header in self.headers)
        for room in rooms:
            lines += ["", f"## {room}", "", ROOMS.get(room, ""), ""]
            lines += [f"- [`{header.path}`]({page_of(header.path)})" for header in self.headers if header.room == room]
        return "\n".join(lines) + "\n"

    @staticmethod
    def sentence(header):
        """The first sentence of a header's comment."""
        return re.split(r"(?<=\.)\s", " ".join(header.comment).strip())[0].replace("_", "\\_")

    def page(self, header):
        self.used = {}
        parts = [f"# {header.path.split('/')[-1]}", "", f"```cpp\n#include \"{header.path}\"\n```", ""]
        parts += self.paragraphs(header, header.comment)
        for group in header.groups:
            parts += self.group(header, group, 2, ())
        return "\n".join(parts) + "\n"

    def group(self, header, group, level, around):
        shown = [one for one in group.declarations if not (one.spelled_out and not group.comment)]
        if not shown:
            return []
        names = list(dict.fromkeys(self.title(one, around) for one in shown))
        parts = ["", f"{'#' * level} {', '.join(names)} {{#{self.unique(anchor(*around, shown[0].name))}}}"]
        for one in shown[1:]:
            if one.name != shown[0].name:
                parts.append(f'<a id="{self.unique(anchor(*around, one.name))}"></a>')
        whole = [one for one in shown if one.fields_only or self.is_enum(one)]
        text = [self.whole(header, one) if one in whole else one.text for one in shown]
        parts += ["", "```cpp", "\n\n".join(text) if whole else "\n".join(text), "```", ""]
        parts += self.paragraphs(header, group.comment)
        for one in shown:
            if one not in whole:
                for inner in one.groups:
                    parts += self.group(header, inner, min(level + 1, 5), (*around, one.name))
        return parts

    @staticmethod
    def is_enum(declaration):
        return declaration.text.startswith("enum ")

    @staticmethod
    def whole(header, declaration):
        """The declaration as the header has it, with the comments inside, which are filled to fewer columns."""
        lines = header.lines[declaration.first - 1:declaration.last]
        indent = len(lines[0]) - len(lines[0].lstrip())
        filled, comment = [], []
        for line in [*(line[indent:] for line in lines), ""]:
            found = re.match(r"(\s*)// (?=\S)(.*)", line)
            if found:
                comment.append(found.groups())
                continue
            if comment:
                begin = comment[0][0] + "// "
                filled += textwrap.wrap(" ".join(text for _, text in comment), COLUMNS, initial_indent=begin, subsequent_indent=begin)
                comment = []
            filled.append(line)
        return "\n".join(filled[:-1])

    @staticmethod
    def title(declaration, around):
        if declaration.kind == "type":
            word = re.search(r"\b(enum class|enum|class|struct)\b", declaration.text)
            return f"{word.group(1).split()[0] if word else 'type'} {declaration.name}"
        return declaration.name.replace("<", "\\<")

    def unique(self, name):
        count = self.used.get(name, 0)
        self.used[name] = count + 1
        return name if not count else f"{name}-{count + 1}"

    def paragraphs(self, header, comment):
        """A comment as Markdown: what is indented stays as it is."""
        parts, lines = [], list(comment)
        while lines:
            if not lines[0].strip():
                lines.pop(0)
                parts.append("")
            elif lines[0].startswith("  "):
                block = []
                while lines and (lines[0].startswith("  ") or (not lines[0].strip() and len(lines) > 1 and lines[1].startswith("  "))):
                    block.append(lines.pop(0))
                indent = min(len(line) - len(line.lstrip()) for line in block if line.strip())
                looks_like_code = any(re.search(r"[=()].*[;{}]\s*(//.*)?$|#include", line) for line in block)
                parts += ["", "```cpp" if looks_like_code else "```text", *(line[indent:] for line in block), "```", ""]
            else:
                if re.match(r"([-*]|\d+\.) ", lines[0]) and parts and not re.match(r"([-*]|\d+\.) ", parts[-1]):
                    parts.append("")
                parts.append(self.linked(header, lines.pop(0)))
        return parts

    def linked(self, header, line):
        up = "../" * (page_of(header.path).count("/"))

        def replace(found):
            code, name, rest, special = found.groups()
            if code:
                return code
            if special:
                return "\\" + special
            known = self.types.get(name.split("::")[-1]) or self.types.get(name.split("::")[0])
            if known is None or not re.search(r"[a-z0-9][A-Z]|::", name):  # "Thread" may be a plain word
                return found.group(0).replace("_", "\\_")
            path, at = known
            target = f"#{at}" if path == header.path else f"{up}{page_of(path)}#{at}"
            return f"[{name}{rest}]({target})".replace("_", "\\_") if "_" not in target else f"[{(name + rest)}]({target})"
        text = WORD.sub(replace, line)
        return re.sub(r"^(\\#|\d+\)|\+)", r"\\\1", text)
