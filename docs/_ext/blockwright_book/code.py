"""The directive ``spec-code``: lines of a chapter, highlighted, in which names and laws link to their definitions."""

import ast
import html
from functools import cache
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from pygments.lexers.python import PythonLexer
from pygments.token import STANDARD_TYPES, Comment, String
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

from . import laws, spec

Place = tuple[int, int]
"""A line of a source, from 1, and a column, from 0."""


class SpecCode(nodes.General, nodes.Element):
    """Lines of a chapter; `chapter` is its name, `numbers` are the lines."""


class SpecCodeDirective(SphinxDirective):
    """Shows lines of a chapter."""

    required_arguments = 1
    option_spec = {"lines": directives.unchanged_required}  # noqa: RUF012  (Sphinx's own way)

    def run(self) -> list[nodes.Node]:
        """Make the node."""
        numbers = [int(number) for number in self.options["lines"].split()]
        self.env.note_dependency(str(next(each.path for each in spec.chapters() if each.name == self.arguments[0])))
        return [SpecCode(chapter=self.arguments[0], numbers=numbers)]


@cache
def targets(chapter: spec.Chapter) -> dict[Place, str]:
    """Return the labels of the names in a chapter's code that were defined at the top of some chapter."""
    known, imports, found = spec.known(chapter), spec.imports(chapter), {}

    def visit(node: ast.AST, local: frozenset[str]) -> None:
        if isinstance(
            node, ast.FunctionDef | ast.Lambda | ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp
        ):
            local |= bound(node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in known.keys() - local:
            found[node.lineno, node.col_offset] = known[node.id]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = next((source for here, source, name in imports if here == node.value.id and not name), "")
            inner = spec.defined().get(module, {})
            if node.attr in inner and node.end_col_offset is not None:
                found[node.end_lineno or 0, node.end_col_offset - len(node.attr)] = inner[node.attr]
        for child in ast.iter_child_nodes(node):
            visit(child, local)

    visit(spec.tree(chapter), frozenset())
    return found


def bound(node: ast.AST) -> frozenset[str]:
    """Return the names that a function or a comprehension binds itself."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return frozenset(names | {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)})


def rendered(chapter: spec.Chapter, numbers: list[int], href: Any) -> str:
    """Return the HTML of some lines; `href` gives the address of a label."""
    source = chapter.path.read_text(encoding="utf-8").splitlines()
    text = "\n".join(source[number - 1] for number in numbers) + "\n"
    at, line, column = targets(chapter), 0, 0
    parts: list[str] = []
    for kind, value in PythonLexer().get_tokens(text):
        label = at.get((numbers[line], column)) if line < len(numbers) else None
        content = html.escape(value)
        if label is not None:
            content = f'<a class="spec-link" href="{href(label)}">{content}</a>'
        elif kind in Comment or kind in String:
            content = laws.NAMED.sub(lambda match: linked(match[0], href), content)
        style = style_of(kind)
        parts.append(f'<span class="{style}">{content}</span>' if style and value.strip() else content)
        line += value.count("\n")
        column = len(value) - value.rfind("\n") - 1 if "\n" in value else column + len(value)
    return "".join(parts)


def style_of(kind: Any) -> str:
    """Return the short name of a kind of token, or of the nearest kind that has one."""
    while kind not in STANDARD_TYPES:
        kind = kind.parent
    return str(STANDARD_TYPES[kind])


def linked(name: str, href: Any) -> str:
    """Return a law's name, as a link if there is such a law."""
    return f'<a class="spec-link" href="{href(laws.label(name))}">{name}</a>' if name in laws.by_id() else name


def visit_spec_code(self: HTML5Translator, node: SpecCode) -> None:
    """Write the code."""
    chapter = next(each for each in spec.chapters() if each.name == node["chapter"])
    here = self.builder.current_docname

    def href(label: str) -> str:
        page = page_of(label)
        return f"#{label}" if page == here else f"{self.builder.get_relative_uri(here, page)}#{label}"

    body = rendered(chapter, node["numbers"], href)
    self.body.append(
        f'<div class="highlight-python notranslate"><div class="highlight"><pre>{body}</pre></div></div>\n'
    )
    raise nodes.SkipNode


def page_of(label: str) -> str:
    """Return the document that holds a label."""
    if label.startswith("law-"):
        return laws.page_of(label)
    return next(
        chapter.page
        for chapter in spec.chapters()
        if label == spec.label(chapter.name) or label in spec.defined()[chapter.name].values()
    )


def skip(self: Any, node: SpecCode) -> None:
    """Leave the code out of formats other than HTML, and of the text that is searched."""
    raise nodes.SkipNode


def add(app: Sphinx) -> None:
    """Add the directive."""
    app.add_node(SpecCode, html=(visit_spec_code, None), text=(skip, None), latex=(skip, None), man=(skip, None))
    app.add_directive("spec-code", SpecCodeDirective)
