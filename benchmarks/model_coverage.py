"""Which models are served: their layers built by vLLM's own code, our manager started over them, and a short run.

Run inside an environment with vLLM (``make model-coverage``). `model_coverage.toml` has a small configuration for each
architecture. vLLM makes its configuration and the model's modules of it on torch's device "meta", without weights, and
the layers declare their caches; where that fails on a CPU, the table has the reason. Drafts are of the model's own
module (MTP) or of an EAGLE head. Then vLLM's scheduler runs random requests over its own manager and over ours, side by
side, with a worker that knows what every slot must hold. The results are printed and, with ``--write``, put into
``docs/reference/served.md``. With ``--peers`` the same is done with the published Python files of the newest release,
beside the libraries that are installed.
"""

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
import traceback
import types
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import vllm
from tests.engines import conftest, stub
from vllm.config import get_layers_from_vllm_config, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.triton_utils import triton
from vllm.v1 import kv_cache_interface as interface
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.workspace import init_workspace_manager

from benchmarks.peers.vllm import PUBLISHED
from blockwright.engines.vllm import kinds
from blockwright.engines.vllm.kinds import layer_spec
from blockwright.errors import UnsupportedError

HERE = conftest.HERE.parents[1] / "benchmarks"
DATA: dict[str, Any] = tomllib.loads((HERE / "model_coverage.toml").read_text(encoding="utf-8"))
PAGE = HERE.parent / "docs" / "reference" / "served.md"
ABSENT = ("cuda", "cutlass", "torchvision")
"""Packages of kernels and of images that models import, and that no layer needs in order to declare its cache."""
PLANNING = ("vllm.v1.core.kv_cache_planning", "vllm.v1.core.kv_cache_utils")
"""Where groups are formed: in 0.33, and before."""
LONGEST = 8192
"""Tokens of the longest request."""
MODES = {"sync": (True, False, False), "async": (True, True, False), "uncached": (False, True, False)}
MODES |= {"drafts, sync": (True, False, True), "drafts, async": (True, True, True)}
"""Prefix caching, asynchronous scheduling, and drafts."""


class _Anything(type):
    """A class for each name of an absent package."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *args: Any, **options: Any) -> Any:
        return cls


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find absent packages, in which every name is a class that does nothing."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: getattr(_Anything("Anything", (), {}), name)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: Any) -> None:
        pass


@dataclass
class Found:
    """What came of one architecture."""

    layers: str = ""
    drafts: str = ""
    results: dict[str, str] = field(default_factory=dict)


def words(error: BaseException) -> str:
    """Return the first line of an error, short."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    line = next((line for line in lines if line.startswith("Value error")), lines[0])
    return f"{type(error).__name__}: {line[:160]}"


def configured(folder: Path, name: str, row: dict[str, Any], caching: bool, drafts: bool) -> Any:
    """Return vLLM's configuration of an architecture, as its engine makes it."""
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    config = DATA["every"] | {"architectures": [name], "model_type": row["type"]} | row.get("config", {})
    (home / "config.json").write_text(json.dumps(config))
    options = {
        "model": str(home),
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "max_model_len": row.get("longest", LONGEST),
        "max_num_seqs": 16,
        "max_num_batched_tokens": LONGEST,
        "enable_prefix_caching": caching,
    }
    if drafts:
        speculative = {"method": row["drafts"], "num_speculative_tokens": row.get("num_drafts", 2)}
        if row["drafts"] == "eagle":
            head = folder / "eagle"
            head.mkdir(exist_ok=True)
            sizes = {"hidden_size": config.get("hidden_size", 4096), "num_hidden_layers": 1}
            (head / "config.json").write_text(json.dumps(DATA["every"] | DATA["eagle"] | sizes))
            speculative["model"] = str(head)
        options["speculative_config"] = speculative
    made = EngineArgs(**options | row.get("options", {})).create_engine_config()
    register_all_kvcache_specs(made)
    return made


def layers_of(config: Any, device: str) -> dict[str, Any]:
    """Return what each layer of a model declares of its cache, as vLLM's worker collects it."""
    config.compilation_config.static_forward_context.clear()
    with set_current_vllm_config(config):
        parallel_state.destroy_model_parallel()
        parallel_state.ensure_model_parallel_initialized(1, 1)
        was = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device(device):
                initialize_model(config)
                if config.speculative_config is not None:
                    prefix = "draft" if config.speculative_config.method == "eagle" else ""
                    initialize_model(config, model_config=config.speculative_config.draft_model_config, prefix=prefix)
        finally:
            torch.set_default_dtype(was)
        current_platform.update_block_size_for_backend(config)
        layers = get_layers_from_vllm_config(config, AttentionLayerBase)
        declared = {
            name: layer.get_kv_cache_spec(config)
            for name, layer in layers.items()
            if not getattr(layer, "kv_sharing_target_layer_name", None)
        }
    return {name: spec for name, spec in declared.items() if spec is not None}


def memory_of(config: Any, specs: dict[str, Any]) -> Any:
    """Return the groups of a model's layers as the engine makes them, over a pool in which few long requests fit."""
    resolve_kv_cache_layout(config, [[layout.name for layout in KVCacheLayout]], list(specs.values()))
    planning = importlib.import_module(next(name for name in PLANNING if importlib.util.find_spec(name)))
    grouped = [planning.get_global_kv_cache_groups(config, [specs])] if planning.__name__ == PLANNING[0] else []
    each = planning.get_kv_cache_configs(config, [specs], [1 << 36 if specs else 0], *grouped)
    found = kv_cache_utils.generate_scheduler_kv_cache_config(each)
    sizes = [group.kv_cache_spec.block_size for group in found.kv_cache_groups if group.kv_cache_spec.prefix_cacheable]
    if sizes:
        config.cache_config.block_size = min(sizes)
    config.validate_block_size()
    return found


def scheduler(config: Any, memory: Any, ours: bool, is_async: bool) -> Any:
    """Return vLLM's scheduler as the engine starts it, with its own manager or with ours."""
    config.scheduler_config.async_scheduling = is_async
    config.cache_config.num_gpu_blocks = memory.num_blocks
    if not memory.kv_cache_groups:
        config.scheduler_config.enable_chunked_prefill = False
    block_size, unit = kv_cache_utils.resolve_kv_cache_block_sizes(memory, config)
    return stub.started(config, memory, ours, block_size, unit)


def ran(config: Any, memory: Any, is_async: bool, drafts: int, steps: int) -> str:
    """Start our manager as the engine would and run it beside vLLM's; return the hits of both, or what went wrong."""
    kinds = [layer_spec(group.kv_cache_spec) for group in memory.kv_cache_groups]
    largest = max((kind.block_size for kind in kinds if kind.block_size < LONGEST), default=128)
    config.scheduler_config.max_num_batched_tokens = max(512, 2 * largest)  # so that prompts come in chunks
    longest = min(config.model_config.max_model_len // 2, 5 * largest)
    each = sum(-(-(longest + 80) // kind.block_size) + 2 + drafts for kind in kinds)
    memory.num_blocks = 6 * each + 1

    def side(ours: bool) -> Any:
        return stub.Side(scheduler(config, memory, ours, is_async), kinds, depth=int(is_async), drafts=drafts)

    mine = side(True)
    if not kinds or any(type(kind).__name__ == "CrossAttentionSpec" for kind in kinds):
        return "starts"  # what an encoder brings is not modelled
    theirs, note, unit = side(False), "", mine.scheduler.hash_block_size
    try:
        stub.walk([theirs, mine], 1, steps, unit, longest=longest, exact=False)
    except stub.WrongContentError as error:
        if "blockwright" in str(error):
            raise
        note = " (vLLM's own is wrong)"
        mine = side(True)
        stub.walk([mine], 1, steps, unit, longest=longest, exact=False)
    return f"{mine.hits}/{theirs.hits}{note}" if mine.queries else f"runs{note}"


def attempt(folder: Path, name: str, row: dict[str, Any], steps: int, modes: Sequence[str]) -> Found:
    """Return what comes of one architecture in some modes."""
    found = Found(drafts=row.get("drafts", ""))
    for mode in modes:
        caching, is_async, drafting = MODES[mode]
        if drafting and not found.drafts:
            continue
        try:
            config = configured(folder, name, row, caching, drafting)
            try:
                layers = layers_of(config, "meta")
            except NotImplementedError:  # a constant of the model is computed on the way
                layers = layers_of(config, "cpu")
            memory = memory_of(config, layers)
            scheduler(config, memory, False, is_async)
        except Exception as error:
            if os.environ.get("COVERAGE_TRACE"):
                traceback.print_exc()
            found.results[mode] = f"not built: {words(error)}"
            continue
        if not found.layers:
            specs = [layer_spec(group.kv_cache_spec) for group in memory.kv_cache_groups]
            kinds = Counter(f"{type(spec).__name__.removesuffix('Spec')} {spec.block_size}" for spec in specs)
            found.layers = ", ".join(f"{count} x {kind}" if count > 1 else kind for kind, count in kinds.items())
        try:
            speculative = config.speculative_config
            found.results[mode] = ran(
                config, memory, is_async, speculative.num_speculative_tokens if speculative else 0, steps
            )
        except UnsupportedError as error:
            found.results[mode] = f"refused: {words(error)}"
        except Exception as error:
            if os.environ.get("COVERAGE_TRACE"):
                traceback.print_exc()
            found.results[mode] = f"FAILS: {words(error)}"
    return found


def table(found: dict[str, Found], modes: Sequence[str]) -> str:
    """Return all that was found as the page has it: the counts, a table, and the reasons behind its words."""
    reasons: dict[str, int] = {}

    def cell(text: str) -> str:
        word, _, reason = text.partition(": ")
        if not reason:
            return text
        return f"{word} [{reasons.setdefault(reason, len(reasons) + 1)}]"

    rows = ["| architecture | groups | " + " | ".join(modes) + " |", "|---" * (len(modes) + 2) + "|"]
    for name, each in found.items():
        cells = [cell(each.results[mode]) if mode in each.results else "" for mode in modes]
        rows.append(f"| {name} | {each.layers} | {' | '.join(cells)} |")
    served = {
        mode: [sum(mode in each.results and is_served(each.results[mode]) for each in found.values()),
               sum(mode in each.results and not each.results[mode].startswith("not built") for each in found.values())]
        for mode in modes
    }  # fmt: skip
    counts = "; ".join(f"{mode} {has} of {of}" for mode, (has, of) in served.items())
    listed = [f"{number}. {reason}" for reason, number in reasons.items()]
    return "\n".join([f"Served of those built: {counts}.", "", *rows, "", *listed])


def refused_kinds(package: Path) -> str:
    """Return, as a table, the kinds of layers that are not managed, and the models of a vLLM that declare them."""
    files = {file: file.read_text(encoding="utf-8") for file in package.rglob("*.py") if "/v1/" not in str(file)}
    homes = {file: text for file, text in files.items() if "models" in file.relative_to(package).parts}
    rows = ["| kind of layer | models of vLLM that declare it |", "|---|---|"]
    for name in sorted(name for name, kind in vars(interface).items() if is_refused(name, kind)):
        makers = [file for file, text in files.items() if re.search(rf"return {name}\(|= {name}\(", text)]
        found = {file for file in makers if file in homes}
        for file in set(makers) - found:  # a layer that models import
            layers = re.findall(r"^class (\w+)", files[file], re.MULTILINE)
            found |= {home for home, text in homes.items() if any(f"{layer}(\n" in text for layer in layers)}
        parts = [file.relative_to(package).with_suffix("").parts for file in found]
        models = sorted({each[1] if each[0] == "models" else each[2] for each in parts})
        rows.append(f"| {name.removesuffix('Spec')} | {len(models)}: {', '.join(models) or 'by an option'} |")
    return "\n".join(rows)


def is_refused(name: str, kind: Any) -> bool:
    """Return whether a class is a kind of layer that the adapter refuses."""
    groups = (
        "KVCacheSpec",
        "AttentionSpec",
        "UniformTypeKVCacheSpecs",
        "EncoderOnlyAttentionSpec",
    )  # no layers of a pool
    is_kind = isinstance(kind, type) and issubclass(kind, interface.KVCacheSpec)
    return is_kind and name not in kinds.KINDS and name not in groups


def is_served(result: str) -> bool:
    """Return whether a mode is served."""
    return not re.match("not built|refused|FAILS", result)


def _like_a_gpu(platform: Any) -> None:
    """Undo what vLLM changes on a CPU: latent attention has neither caching nor chunks there, and none is sparse."""
    backend_of, checked = platform.get_attn_backend_cls, platform.check_and_update_config
    latent, sparse = AttentionBackendEnum.TRITON_MLA.get_path(), AttentionBackendEnum.FLASHMLA_SPARSE.get_path()

    def check(config: Any) -> None:
        caching, chunks = config.cache_config.enable_prefix_caching, config.scheduler_config.enable_chunked_prefill
        checked(config)
        if config.model_config is not None and config.model_config.use_mla:
            config.cache_config.enable_prefix_caching = caching
            config.scheduler_config.enable_chunked_prefill = chunks

    def backend(chosen: Any, attn_selector_config: Any, num_heads: int | None = None) -> Any:
        if attn_selector_config.use_mla:
            return sparse if attn_selector_config.use_sparse else latent
        return backend_of(chosen, attn_selector_config, num_heads)

    platform.get_attn_backend_cls, platform.check_and_update_config = staticmethod(backend), staticmethod(check)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("build/model-coverage"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    parser.add_argument("--peers", type=Path, help="where `make bench-peers` put the newest release")
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("names", nargs="*", help="architectures; all without")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.peers and vllm.__version__.partition("+")[0] != PUBLISHED.version:
        PUBLISHED.check(args.peers)
        environment = conftest.published(args.folder.absolute(), args.peers.absolute(), PUBLISHED.version)
        return subprocess.call([sys.executable, *sys.argv], env=environment)
    vars(registry).update(_run_in_subprocess=lambda look: look())  # a process for each model takes seconds
    sys.meta_path.append(_Absent())
    triton.set_allocator = lambda allocator: None
    vars(torch.cuda).update(Stream=_Anything("Stream", (), {}), Event=_Anything("Event", (), {}))
    torch.accelerator.empty_cache = lambda: None
    init_workspace_manager(torch.device("cpu"))
    _like_a_gpu(type(current_platform))
    parallel_state.init_distributed_environment(1, 0, f"file://{args.folder.absolute()}/store-{os.getpid()}", 0, "gloo")
    found = {}
    for name, row in DATA["models"].items():
        if args.names and name not in args.names:
            continue
        found[name] = attempt(args.folder, name, row, args.steps, args.modes)
        print(name, found[name], flush=True)
    text = table(found, args.modes) + f"\n\n{refused_kinds(Path(vllm.__file__).parent)}"
    print(text)
    if args.write:
        mark = f"<!-- written by make model-coverage{', newest release' if args.peers else ''} -->\n"
        begin, _, rest = PAGE.read_text(encoding="utf-8").partition(mark)
        end = rest.partition("<!-- end -->")[2]
        PAGE.write_text(f"{begin}{mark}{text}\n<!-- end -->{end}", encoding="utf-8")
    return sum(result.startswith("FAILS") for each in found.values() for result in each.results.values())


if __name__ == "__main__":
    sys.exit(main())
