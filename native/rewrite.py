"""Changes to the C that mypyc writes for a module: docstrings, what runs once, and the door of public calls.

`setup.py` runs this file by its path. The changes are of text; where mypyc writes something else than is looked for
here, a public call would lack its door, which `tests/core/test_arguments.py` sees.
"""

import ast
import re
import sys

# What runs once, when a module is imported, is a tenth of the code, in long functions: optimizing them takes its time.
# (Of gcc's other ways to say so, `optimize("O0")` compiles functions around it to slower code.)
ONCE = "" if sys.platform == "win32" else "__attribute__((cold)) "
INTERNAL = {"i64", "i32", "u8", "vec"}  # as in blockwright.arguments

Function = ast.FunctionDef


def rewritten(text: str, source: str, module: str) -> str:
    """Return a module's C with all changes, made after its source."""
    text = re.sub(r"^(?=char CPyDef_\w+_____top_level__\(void\) \{)", ONCE, text, flags=re.MULTILINE)
    body = ast.parse(source).body
    text = described(text, r"\w*module_methods", body)
    functions = [("", node) for node in body if isinstance(node, Function)]
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            text = described(text, rf"\w*___{node.name}_(?:methods|getseters)", node.body)
            text = class_described(text, node)
            functions += [(node.name, each) for each in node.body if isinstance(each, Function)]
    for owner, function in functions:
        if is_public(function):
            text = guarded(text, owner, function, module)
        if owner and makes(function):
            text = strict(text, owner, function)
    return '#include "arguments.h"\n' + text


# ---------------------------------------------------------------------- docstrings


def described(text: str, table: str, body: list[ast.stmt]) -> str:
    """Give the public functions and properties of one table of C their docstrings (a property, that of its getter).

    mypyc drops them, and `help` would show nothing. They are constant text in the library, and cost no time.
    """
    functions = [node for node in body[::-1] if isinstance(node, Function)]
    docs = {
        node.name: c_text(said)
        for node in functions
        if not node.name.startswith("_") and (said := ast.get_docstring(node))
    }
    inits = [node for node in functions if node.name == "__init__"]

    def method(entry: re.Match[str]) -> str:
        return f'{entry[1]}"{entry[3] or ""}" {docs[entry[2]]}' if entry[2] in docs else entry[0]

    def accessor(entry: re.Match[str]) -> str:
        return f"{entry[1]}{docs[entry[2]]}, NULL" if entry[2] in docs else entry[0]

    def constructor(entry: re.Match[str]) -> str:
        """Let the entry, which Python drops for a plain one of the same name, take its place: it knows parameters."""
        said = f"__init__({parameters(inits[0], '$self')})\n--\n\n{explained(inits[0])}"
        return f"{entry[1]}METH_VARARGS | METH_KEYWORDS | METH_COEXIST, PyDoc_STR({c_text(said)})"

    def filled(found: re.Match[str]) -> str:
        entries = re.sub(r'(\{"(\w+)",[^}]*PyDoc_STR\()(?:NULL|"((?:[^"\\]|\\.)*)")', method, found[0])
        if inits:
            plain = r'(\{"__init__",\s*\(PyCFunction\)\w+,\s*)[\w |]+, PyDoc_STR\((?:NULL|"(?:[^"\\]|\\.)*")\)'
            entries = re.sub(plain, constructor, entries)
        return re.sub(r'(\{"(\w+)",\s*\(getter\)\w+,\s*(?:\(setter\)\w+|NULL),\s*)NULL, NULL', accessor, entries)

    return re.sub(rf"static Py(?:MethodDef|GetSetDef) {table}\[\] = \{{.*?\n\}};", filled, text, flags=re.DOTALL)


def class_described(text: str, node: ast.ClassDef) -> str:
    """Give a class its docstring, and the parameters that it is made with.

    A class that stays one of Python's (a named tuple, an enumeration) is told its docstring where the module makes it.
    """
    init = [each for each in node.body if isinstance(each, Function) and each.name == "__init__"]
    said = ast.get_docstring(node) or ""
    literal = c_text(f"{node.name}({parameters(init[0]) if init else ''})\n--\n\n{said}")
    line = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    places = (
        (rf'(\.tp_name = "{node.name}",[^;]*?\.tp_doc = PyDoc_STR\()(?:NULL|"(?:[^"\\]|\\.)*")', literal),
        (
            r"(= )CPyStatics\[\d+\](?=; /\* 'mypyc filler docstring' \*/(?:\n.*){5}\"<module>\", "
            rf"(?:{line}|{node.lineno}),)",
            f"PyUnicode_FromString({c_text(said)})",
        ),
    )
    for place, new in places:
        text = re.sub(place, lambda found: found[1] + new, text)  # noqa: B023
    return text


def parameters(function: Function, first: str = "") -> str:
    """Return the parameters of a method without `self` and types, as `inspect` reads them: defaults are literals."""
    arguments = ast.parse(ast.unparse(function)).body[0].args  # type: ignore[attr-defined]
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        each.annotation = None
    arguments.defaults = [shown_default(each) for each in arguments.defaults]
    arguments.kw_defaults = [each and shown_default(each) for each in arguments.kw_defaults]
    (arguments.posonlyargs or arguments.args).pop(0)
    rest = ast.unparse(arguments)
    return f"{first}, {rest}" if first and rest else first or rest


def shown_default(default: ast.expr) -> ast.expr:
    """Return a default that `inspect` can read; an ellipsis for one that has a name."""
    try:
        ast.literal_eval(default)
    except ValueError:
        return ast.Constant(...)
    return default


def explained(function: Function) -> str:
    """Return the docstring of a constructor, after a line for each parameter with its type and default."""
    lines = parameters_by_line(function)
    return "\n".join([ast.get_docstring(function) or "", "", "Parameters, with their types:", *lines] if lines else [])


def parameters_by_line(function: Function) -> list[str]:
    """Return a line for each parameter with its type and default."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    without = [None] * (len(positional) - len(arguments.defaults))
    pairs = [*zip(positional, [*without, *arguments.defaults], strict=True)][1:]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [
        f"    {each.arg}: {ast.unparse(each.annotation) if each.annotation else 'object'}"
        + (f" = {ast.unparse(default)}" if default else "")
        for each, default in pairs
    ]


def c_text(text: str) -> str:
    """Return a string literal of C."""
    data = text.encode("ascii", "backslashreplace").decode()
    escaped = data.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("?", "\\?")
    return f'"{escaped}"'


# ---------------------------------------------------------------------- the door


def is_public(function: Function) -> bool:
    """Return whether a function has a door: callers outside the package may name it, and pass what they like."""
    arguments = function.args
    texts = [annotation for _, annotation in annotated(function)]
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    named = function.name == "__init__" or not function.name.startswith("_")
    return bool(named and texts and not words & INTERNAL and not arguments.vararg and not arguments.kwarg)


def annotated(function: Function) -> list[tuple[str, str]]:
    """Return the parameters that have an annotation, each with its text."""
    arguments = function.args
    each = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [(one.arg, ast.unparse(one.annotation)) for one in each if one.annotation is not None]


def guarded(text: str, owner: str, function: Function, module: str) -> str:
    """Put the door into the wrapper of one function, or into what sets one property."""
    pairs = annotated(function)
    signature = c_text("; ".join(f"{name}: {annotation}" for name, annotation in pairs))
    described = f"{signature}, {c_text(module)}"
    if any(isinstance(each, ast.Attribute) and each.attr == "setter" for each in function.decorator_list):
        described = f"{c_text(f'{function.name}: {pairs[0][1]}')}, {c_text(module)}"
        head = rf"static int\n(\w*___{owner}_set_{function.name})\([^)]*\)\n\{{.*?\n\}}\n"
        return re.sub(head, lambda found: setter_guarded(found, described), text, flags=re.DOTALL)
    path = f"___{owner}___{function.name}" if owner else f"___{function.name}"
    fast = r"PyObject \*self, PyObject \*const \*args, size_t nargs, PyObject \*kwnames"
    slow = r"PyObject \*self, PyObject \*args, PyObject \*kw"
    head = rf"( *)PyObject \*(CPyPy_\w+{path})\(({fast}|{slow})\) \{{\n.*?\n\1\}}\n"
    return re.sub(head, lambda found: wrapper_guarded(found, pairs, described), text, flags=re.DOTALL)


def makes(function: Function) -> bool:
    """Return whether a function makes an object of its class for callers outside the package."""
    is_class_method = any(isinstance(each, ast.Name) and each.id == "classmethod" for each in function.decorator_list)
    if function.name != "__init__" and (function.name.startswith("_") or not is_class_method):
        return False
    words = {word for _, text in annotated(function) for word in re.findall(r"\w+", text)}
    return not (words & INTERNAL or function.args.vararg or function.args.kwarg)


def strict(text: str, owner: str, function: Function) -> str:
    """Let a constructor that could not take a call say why, by the name of its class and its own parameters."""
    header = parameters(function)
    described = c_text(f"{'' if function.name == '__init__' else function.name}({header}")
    head = rf"( *)PyObject \*CPyPy_\w+___{owner}___{function.name}\((?:[^)]*)\) \{{\n.*?\n\1\}}\n"

    def said(found: re.Match[str]) -> str:
        is_fast = "kwnames" in found[0].partition("{")[0]
        refuse = "Blockwright_RefuseFast(self, args, nargs, kwnames" if is_fast else "Blockwright_Refuse(self, args, kw"
        failed = r"(Arg_Parse\w+\(.*\n\s*return )NULL(;\n\s*\}\n)"
        return re.sub(failed, lambda parse: f"{parse[1]}{refuse}, {described}){parse[2]}", found[0], count=1)

    return re.sub(head, said, text, flags=re.DOTALL)


def setter_guarded(found: re.Match[str], described: str) -> str:
    """Return what sets a property, with a door."""
    again = f"return Blockwright_EnterSetter((setter){found[1]}, (PyObject *) self, value, closure, {described});"
    text = re.sub(r'CPy_TypeError\("[^"]*", value\);\s*return -1;', lambda _: again, found[0])
    return text.replace("likely(PyLong_Check(value))", "likely(PyLong_CheckExact(value))")


def wrapper_guarded(found: re.Match[str], pairs: list[tuple[str, str]], described: str) -> str:
    """Return a wrapper with its door: where an argument is not exactly of its type, the call is made again.

    mypyc tests the types that it knows; these tests now lead to the door. The others are tested before them.
    """
    text, indent, name = found[0], found[1], found[2]
    is_fast = "kwnames" in found[3]
    given = "self, args, nargs, kwnames" if is_fast else "self, args, kw"
    body, end = text[: text.rindex("}")], text[text.rindex("}") :]
    body = re.sub(r'CPy_TypeError\("[^"]*", obj_(?!self\b)\w+\);\s*goto fail;', "goto blockwright_enter;", body)
    body = re.sub(r"PyLong_Check\((obj_\w+)\)", r"PyLong_CheckExact(\1)", body)
    tests, remembered, declared = [], [], []
    for parameter, annotation in pairs:
        test = passes(f"obj_{parameter}", annotation)
        if test is None or f"obj_{parameter}" not in body:
            continue
        if "{seen}" in test:
            seen = f"seen_{parameter}"
            declared.append(f"static PyTypeObject *{seen};")
            one = "Blockwright_RememberItem" if "IsSeen" in test else "Blockwright_Remember"
            remembered.append(f"if (obj_{parameter} != NULL) {one}(&{seen}, obj_{parameter});")
            test = test.replace("{seen}", seen)
        tests.append(f"(obj_{parameter} == NULL || {test})")
    if tests:
        entered = "args" if is_fast else "(const void *)kw"
        check = [
            *declared,
            f"if (unlikely(!({' && '.join(tests)}))) {{",
            f"    if ({entered} != Blockwright_entered) goto blockwright_enter;",
            *(f"    {line}" for line in remembered),
            "}",
        ]
        lines = "".join(f"{indent}    {line}\n" for line in check)
        body = re.sub(r"(Arg_Parse\w+\(.*\n\s*return NULL;\n\s*\}\n)", lambda parse: parse[0] + lines, body, count=1)
    if "goto blockwright_enter;" not in body:
        return text
    enter = "Blockwright_EnterFast" if is_fast else "Blockwright_EnterInit"
    return f"{body}blockwright_enter: ;\n{indent}    return {enter}({name}, {given}, {described});\n{indent}{end}"


TESTS = {
    "int | Sequence[int]": "PyLong_CheckExact({0}) || PyList_CheckExact({0})",
    "Sequence[Request]": "PyList_CheckExact({0})",
    "Sequence[int]": "PyList_CheckExact({0})",
    "Iterable[bytes]": "PyList_CheckExact({0})",
    "Sequence[object]": "PyList_CheckExact({0})",
    "Iterable[object]": "PyList_CheckExact({0})",
    "float": "PyFloat_CheckExact({0})",
    "list[int]": "Blockwright_IsInts({0})",
    "Iterable[int]": "Blockwright_IsInts({0})",
    "list[bytes]": "Blockwright_IsBytes({0})",
    "Sequence[bytes]": "Blockwright_IsBytes({0})",
    "list[list[int]]": "Blockwright_IsIntLists({0})",
    "Mapping[str, int]": "Blockwright_IsCounts({0})",
    "None": "{0} == Py_None",
}
"""Of annotations that mypyc does not test, or not exactly: what an argument is that needs no closer look."""

TESTED = {"int", "str", "bool", "bytes", "int | None", "str | None", "bool | None", "bytes | None"}
"""Annotations that mypyc tests itself. It tests compiled classes as well, whose second test here is one comparison."""


def passes(name: str, annotation: str) -> str | None:
    """Return the test in C that an argument needs no closer look; None where mypyc's own test is enough."""
    if annotation in TESTED or annotation in ("object", "Any"):
        return None
    if annotation in TESTS:
        return f"({TESTS[annotation].format(name)})"
    if annotation.endswith(" | None"):
        rest = passes(name, annotation.removesuffix(" | None"))
        return rest and f"({name} == Py_None || {rest})"
    if re.fullmatch(r"(list|Sequence|Iterable)\[\w+\]", annotation):
        return f"Blockwright_IsSeen({name}, {{seen}})"
    if re.fullmatch(r"[\w.]+|Callable\[.*\]", annotation):
        return f"Py_TYPE({name}) == {{seen}}"
    return "0"
