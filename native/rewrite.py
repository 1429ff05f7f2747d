"""Changes to the C that mypyc writes for a module: docstrings, what runs once, and the door of public calls.

`setup.py` runs this file by its path. The changes are of text. Where mypyc writes something else than is looked for
here, the build fails, and the error names the function (`NotFoundError`): none loses its door or docstring unseen.
"""

import ast
import re
import sys

# What runs once, when a module is imported, is a tenth of the code, in long functions: optimizing them takes its time.
# (Of gcc's other ways to say so, `optimize("O0")` compiles functions around it to slower code.)
ONCE = "" if sys.platform == "win32" else "__attribute__((cold)) "
INTERNAL = {"i64", "i32", "u8", "vec"}  # as in blockwright.arguments

UNREAD = {"Sequence[Request]", "int | Sequence[int]", "Sequence[int]", "Iterable[bytes]"}  # the same
UNREAD |= {"SupportsIndex | Tokens", "Tokens"}
FREE = {"object", "Any"}  # whose arguments need no look

Function = ast.FunctionDef


class NotFoundError(RuntimeError):
    """What mypyc wrote for a function is not what is looked for; another version of it may have written it."""

    def __init__(self, module: str, owner: str, name: str, what: str) -> None:
        super().__init__(
            f"{'.'.join(filter(None, (module, owner, name)))}: {what}, in the C that mypyc wrote: pin the mypy of "
            "pyproject.toml, or have native/rewrite.py look for what is written now"
        )


class HiddenError(RuntimeError):
    """A public function or class is where its wrapper is not looked for, so that it would have no door."""

    def __init__(self, module: str, name: str) -> None:
        super().__init__(
            f"{module}.{name}: is defined within a statement, or with async; it would have no check of its arguments: "
            "define it at the top of its module or class"
        )


def rewritten(text: str, source: str, module: str) -> str:
    """Return a module's C with all changes, made after its source."""
    text, found = re.subn(r"^(?=char CPyDef_\w+_____top_level__\(void\) \{)", ONCE, text, flags=re.MULTILINE)
    if found != 1:
        raise NotFoundError(module, "", "", f"{found} functions that run at import")
    body = ast.parse(source).body
    for within in (body, *(node.body for node in body if isinstance(node, ast.ClassDef))):
        require_seen(within, module)
    text = described(text, r"\w*module_methods", body, module)
    functions = [("", node) for node in body if isinstance(node, Function)]
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            text = described(text, rf"\w*___{node.name}_(?:methods|getseters)", node.body, module, node.name)
            text = class_described(text, node, module)
            functions += [(node.name, each) for each in node.body if isinstance(each, Function)]
    for owner, function in functions:
        if is_public(function):
            text = guarded(text, owner, function, module)
        if owner and makes(function):
            text = strict(text, owner, function, module)
    return '#include "arguments.h"\n' + text


def require_seen(body: list[ast.stmt], module: str) -> None:
    """Check that every public definition of a module or class stands in its body itself.

    Raises:
        HiddenError: one is within a statement, as `if`, or is asynchronous.
    """
    for node in body:
        if not isinstance(node, (Function, ast.ClassDef)):
            for each in ast.walk(node):
                if isinstance(each, (Function, ast.AsyncFunctionDef, ast.ClassDef)) and not each.name.startswith("_"):
                    raise HiddenError(module, each.name)


# ---------------------------------------------------------------------- docstrings


def described(text: str, table: str, body: list[ast.stmt], module: str = "", owner: str = "") -> str:
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
    seen = set[str]()

    def method(entry: re.Match[str]) -> str:
        seen.add(entry[2])
        return f'{entry[1]}"{entry[3] or ""}" {docs[entry[2]]}' if entry[2] in docs else entry[0]

    def accessor(entry: re.Match[str]) -> str:
        seen.add(entry[2])
        return f"{entry[1]}{docs[entry[2]]}, NULL" if entry[2] in docs else entry[0]

    def constructor(entry: re.Match[str]) -> str:
        """Let the entry, which Python drops for a plain one of the same name, take its place: it knows parameters."""
        seen.add("__init__")
        said = f"__init__({parameters(inits[0], '$self')})\n--\n\n{explained(inits[0])}"
        return f"{entry[1]}METH_VARARGS | METH_KEYWORDS | METH_COEXIST, PyDoc_STR({c_text(said)})"

    def filled(found: re.Match[str]) -> str:
        entries = re.sub(r'(\{"(\w+)",[^}]*PyDoc_STR\()(?:NULL|"((?:[^"\\]|\\.)*)")', method, found[0])
        if inits:
            plain = r'(\{"__init__",\s*\(PyCFunction\)\w+,\s*)[\w |]+, PyDoc_STR\((?:NULL|"(?:[^"\\]|\\.)*")\)'
            entries = re.sub(plain, constructor, entries)
        return re.sub(r'(\{"(\w+)",\s*\(getter\)\w+,\s*(?:\(setter\)\w+|NULL),\s*)NULL, NULL', accessor, entries)

    text = re.sub(rf"static Py(?:MethodDef|GetSetDef) {table}\[\] = \{{.*?\n\}};", filled, text, flags=re.DOTALL)
    for name in [*docs, *(each.name for each in inits)]:
        if name not in seen:
            raise NotFoundError(module, owner, name, "no entry of a table that can hold its docstring")
    return text


def class_described(text: str, node: ast.ClassDef, module: str = "") -> str:
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
    counts = []
    for place, new in places:
        text, count = re.subn(place, lambda found: found[1] + new, text)  # noqa: B023
        counts.append(count)
    if said and sum(counts) != 1:
        raise NotFoundError(module, node.name, "", f"{sum(counts)} places for its docstring")
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
    """Put the door into the wrapper of one function, or into what sets one property.

    Raises:
        NotFoundError: it is not there, or has no place for the door.
    """
    pairs = annotated(function)
    signature = c_text("; ".join(f"{name}: {annotation}" for name, annotation in pairs))
    described = f"{signature}, {c_text(module)}"
    if any(isinstance(each, ast.Attribute) and each.attr == "setter" for each in function.decorator_list):
        described = f"{c_text(f'{function.name}: {pairs[0][1]}')}, {c_text(module)}"
        head = rf"static int\n(\w*___{owner}_set_{function.name})\([^)]*\)\n\{{.*?\n\}}\n"
        text, count = re.subn(head, lambda found: setter_guarded(found, pairs[0][1], described), text, flags=re.DOTALL)
    else:
        path = f"___{owner}___{function.name}" if owner else f"___{function.name}"
        fast = r"PyObject \*self, PyObject \*const \*args, size_t nargs, PyObject \*kwnames"
        slow = r"PyObject \*self, PyObject \*args, PyObject \*kw"
        head = rf"( *)PyObject \*(CPyPy_\w+{path})\(({fast}|{slow})\) \{{\n.*?\n\1\}}\n"
        text, count = re.subn(head, lambda found: wrapper_guarded(found, pairs, described), text, flags=re.DOTALL)
    if count != 1:
        raise NotFoundError(module, owner, function.name, f"{count} wrappers that could have its door")
    if lacking := [name for name, _ in pairs if f"{NO_DOOR}{name};" in text]:
        raise NotFoundError(
            module, owner, function.name, f"no test of {', '.join(lacking)} that could lead to its door"
        )
    return text


def makes(function: Function) -> bool:
    """Return whether a function makes an object of its class for callers outside the package."""
    is_class_method = any(isinstance(each, ast.Name) and each.id == "classmethod" for each in function.decorator_list)
    if function.name != "__init__" and (function.name.startswith("_") or not is_class_method):
        return False
    words = {word for _, text in annotated(function) for word in re.findall(r"\w+", text)}
    return not (words & INTERNAL or function.args.vararg or function.args.kwarg)


def strict(text: str, owner: str, function: Function, module: str) -> str:
    """Let a constructor that could not take a call say why, by the name of its class and its own parameters."""
    header = parameters(function)
    described = c_text(f"{'' if function.name == '__init__' else function.name}({header}")
    head = rf"( *)PyObject \*CPyPy_\w+___{owner}___{function.name}\((?:[^)]*)\) \{{\n.*?\n\1\}}\n"

    def said(found: re.Match[str]) -> str:
        is_fast = "kwnames" in found[0].partition("{")[0]
        refuse = "Blockwright_RefuseFast(self, args, nargs, kwnames" if is_fast else "Blockwright_Refuse(self, args, kw"
        failed = r"(Arg_Parse\w+\(.*\n\s*return )NULL(;\n\s*\}\n)"
        return re.sub(failed, lambda parse: f"{parse[1]}{refuse}, {described}){parse[2]}", found[0], count=1)

    text, count = re.subn(head, said, text, flags=re.DOTALL)
    if count != 1 or described not in text:
        raise NotFoundError(module, owner, function.name, "no refusal that could name its class")
    return text


NO_DOOR = "#error no door for "
"""Stands in a wrapper for a parameter whose test was not found: such C does not even compile."""

EXACT = {"int": "PyLong_CheckExact({0})", "str": "PyUnicode_CheckExact({0})", "bool": "PyBool_Check({0})",
         "bytes": "PyBytes_CheckExact({0})"}  # fmt: skip


def setter_guarded(found: re.Match[str], annotation: str, described: str) -> str:
    """Return what sets a property, with a door, and refuses to delete it: mypyc would set it to no object at all."""
    again = f"return Blockwright_EnterSetter((setter){found[1]}, (PyObject *) self, value, closure, {described});"
    text, count = re.subn(r'CPy_TypeError\("[^"]*", value\);\s*return -1;', lambda _: again, found[0])
    text = text.replace("likely(PyLong_Check(value))", "likely(PyLong_CheckExact(value))")
    lines = ['if (value == NULL) {', '    PyErr_SetString(PyExc_AttributeError, "a property cannot be deleted");',
             "    return -1;", "}"]  # fmt: skip
    kinds = [EXACT.get(each, "") for each in annotation.removesuffix(" | None").split(" | ")]
    if not count and annotation.endswith(" | None") and all(kinds):  # mypyc itself tests no union
        tests = " || ".join(each.format("value") for each in ("{0} == Py_None", *kinds))
        lines.append(f"if (unlikely(!({tests}))) {again}")
    elif annotation not in FREE and (not count or "PyLong_Check(" in text):
        lines.append(f"{NO_DOOR}value;")
    start = text.index("{\n") + 2
    return text[:start] + "".join(f"    {line}\n" for line in lines) + text[start:]


def wrapper_guarded(found: re.Match[str], pairs: list[tuple[str, str]], described: str) -> str:
    """Return a wrapper with its door: where an argument is not exactly of its type, the call is made again.

    mypyc tests the types that it knows; these tests now lead to the door. The others are tested before them.
    """
    text, indent, name = found[0], found[1], found[2]
    is_fast = "kwnames" in found[3]
    given = "self, args, nargs, kwnames" if is_fast else "self, args, kw"
    body, end = text[: text.rindex("}")], text[text.rindex("}") :]
    mistyped = r'CPy_TypeError\("[^"]*", obj_((?!self\b)\w+)\);\s*goto fail;'
    led = {each[1] for each in re.finditer(mistyped, body)}
    body = re.sub(mistyped, "goto blockwright_enter;", body)
    body = re.sub(r"PyLong_Check\((obj_\w+)\)", r"PyLong_CheckExact(\1)", body)
    tests, remembered, declared, lacking = [], [], [], []
    for parameter, annotation in pairs:
        test = passes(f"obj_{parameter}", annotation)
        if annotation in UNREAD:
            test = f"({test} || Blockwright_IsSized(obj_{parameter}, {{seen}}))"
        tested = test or annotation in FREE or (parameter in led and is_tested(body, parameter, annotation))
        if f"obj_{parameter}" not in body or not tested:
            lacking.append(parameter)
        if test is None:
            continue
        if "{seen}" in test:
            seen = f"seen_{parameter}"
            declared.append(f"static PyTypeObject *{seen};")
            kind = next((kind for mark, kind in REMEMBER.items() if mark in test), "")
            remembered.append(f"if (obj_{parameter} != NULL) Blockwright_Remember{kind}(&{seen}, obj_{parameter});")
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
        parsed = r"(Arg_Parse\w+\(.*\n\s*return NULL;\n\s*\}\n)"
        body, count = re.subn(parsed, lambda parse: parse[0] + lines, body, count=1)
        lacking += [parameter for parameter, _ in pairs] if not count else []
    body += "".join(f"\n{NO_DOOR}{parameter};\n" for parameter in lacking)
    if "goto blockwright_enter;" not in body:
        return body + end
    enter = "Blockwright_EnterFast" if is_fast else "Blockwright_EnterInit"
    return f"{body}blockwright_enter: ;\n{indent}    return {enter}({name}, {given}, {described});\n{indent}{end}"


def is_tested(body: str, parameter: str, annotation: str) -> bool:
    """Return whether mypyc's own test of a parameter, which leads to the door, takes exactly its types."""
    tests = {"int": f"PyLong_CheckExact(obj_{parameter})", "str": f"PyUnicode_Check(obj_{parameter})"}
    tests |= {"bool": f"PyBool_Check(obj_{parameter})", "bytes": f"PyBytes_Check(obj_{parameter})"}
    return all(tests[each] in body for each in annotation.split(" | ") if each in tests)


REMEMBER = {"IsSeen": "Item", "IsSized": "Sized"}
"""How a type that was admitted is remembered, by the test that asks for it."""

TESTS = {
    "int | Sequence[int]": "PyLong_CheckExact({0}) || PyList_CheckExact({0})",
    "SupportsIndex | Tokens": "PyLong_CheckExact({0}) || PyList_CheckExact({0})",
    "Tokens": "PyList_CheckExact({0})",
    "Hashable": "Py_TYPE({0})->tp_hash != PyObject_HashNotImplemented",
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
    "Mapping[Any, int]": "Blockwright_IsCounts({0})",
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
