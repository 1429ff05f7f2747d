"""Adapter of SGLang's prefix tree: an engine's side of it, and what can be seen of its state.

The tree is another interface than a block manager's: `match_prefix`, `insert`, `evict`, `inc_lock_ref`, `dec_lock_ref`
over slots that the engine takes from an allocator. This engine does with them what SGLang's scheduler does (its
`checkpoint_into_tree` and `release_kv_cache`, in the same order), for requests that are nothing but their tokens:

    admit       match the prompt but its last token, lock the node, take slots for the rest (evict for them if need be)
    grow        one more token
    checkpoint  insert what is complete, take over the tree's slots for what was there already, move the lock
    slide       give back the window's dead slots; past it, release the window's part of the lock
    finish      checkpoint, then give back the rest and the lock
    abort       give back what is the request's own, and the lock

Ghosts: what was written to each slot (the tokens up to its position, all that decides its content).
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

from blockwright_spec.reads import Full, Group, Mamba, Sliding

from .sglang_engine import SglangEngine

Tokens = tuple[int, ...]


class RadixScope(NamedTuple):
    """A world: pools of slots, the page, the layers, and what requests say."""

    name: str
    slots: int
    requests: tuple[tuple[Tokens, int], ...]
    """Of each: all its tokens, and how many of them are its prompt."""
    page: int = 1
    window: int | None = None
    """Earlier tokens that a token of a windowed layer reads, if there is one."""
    window_slots: int = 0
    states: int = 0
    """Slots for the states of a recurrent layer, if there is one."""
    copies: bool = False
    """Whether lookups are made that copy the state they find, as those of SGLang's scheduler do."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """Return the layers in the specification's terms; a window there counts the token itself."""
        window = (Group(Sliding(self.window + 1), self.page),) if self.window is not None else ()
        return (Group(Full(), self.page), *window, *((Group(Mamba(), 1),) if self.states else ()))


@dataclass(slots=True)
class Run:
    """A request that runs: its tokens computed, its slots, how many of them are the tree's, and what it holds."""

    computed: int
    table: list[int]
    tree: int
    """Leading slots that are the tree's: page aligned."""
    lock: Any
    dead: int = 0
    """Leading tokens whose slots of the window were given back, or are the tree's to give."""
    state: int | None = None
    hit: int = 0


@dataclass(slots=True)
class Ghosts:
    """What was written to each slot, by kind of slot."""

    full: dict[int, Tokens] = field(default_factory=dict)
    window: dict[int, Tokens] = field(default_factory=dict)
    state: dict[int, Tokens] = field(default_factory=dict)


class Page(NamedTuple):
    """A page of the tree: the slots of its tokens, of its window (None: gone), and the state at its end."""

    full: Tokens
    window: Tokens | None
    state: int | None
    locks: tuple[int, ...]
    """How often each component of its node is locked."""


class Do(NamedTuple):
    """An action: what, by which request, or how much of each kind."""

    what: str
    name: str = ""
    amounts: tuple[int, int, int] = (0, 0, 0)


class RadixEngine:
    """The tree under test and the engine around it."""

    def __init__(self, engine: SglangEngine, scope: RadixScope) -> None:
        self.engine, self.scope = engine, scope
        types = engine.types
        pool, allocator = engine.pools.ReqToTokenPool(1, 8, "cpu", False), self.allocator()
        components = [types.FULL]
        if scope.window is not None:
            components.append(types.SWA)
        if scope.states:
            components.append(types.MAMBA)
            pool = engine.pools.HybridReqToTokenPool.__new__(engine.pools.HybridReqToTokenPool)
            pool.mamba_allocator, pool.mamba_ckpt_pool = engine.states.MambaSlotAllocator(scope.states, "cpu"), None
        params = engine.params.CacheInitParams(
            disable=False,
            req_to_token_pool=pool,
            token_to_kv_pool_allocator=allocator,
            page_size=scope.page,
            sliding_window_size=scope.window,
            tree_components=tuple(components),
            tree_core_backend="python",
            enable_kv_cache_events=True,
        )
        self.pool, self.slots, self.cache = pool, allocator, engine.cache.UnifiedRadixCache(params)
        self.runs: dict[str, Run] = {}
        self.ghosts = Ghosts()
        self.done: list[Do] = []
        self.mirror: dict[str, Tokens] = {}
        """What whoever hears the events knows: the tokens up to the end of each page, by its hash."""
        self.not_news: list[str] = []
        self.hear()

    def allocator(self) -> Any:
        scope, engine = self.scope, self.engine
        dtype = engine.torch.float16
        if scope.window is not None:
            return engine.swa.SWATokenToKVPoolAllocator(
                scope.slots, scope.window_slots, scope.page, dtype, "cpu", engine.swa_pool(), need_sort=False
            )
        if scope.page == 1:
            return engine.token.TokenToKVPoolAllocator(scope.slots, dtype, "cpu", None, need_sort=False)
        return engine.paged.PagedTokenToKVPoolAllocator(scope.slots, scope.page, dtype, "cpu", None, need_sort=False)

    def copy(self) -> Self:
        """Return an independent copy: what happened happens again on a new tree, which is faster."""
        new = type(self)(self.engine, self.scope)
        for action in self.done:
            new.do(action)
        return new

    def do(self, action: "Do") -> Any:
        self.done.append(action)
        answer = self.perform(action)
        self.hear()
        return answer

    def hear(self) -> None:
        for event in self.cache.take_events():
            hashes = getattr(event, "block_hashes", ())
            if type(event).__name__ == "BlockStored":
                prefix = () if event.parent_block_hash is None else self.mirror.get(event.parent_block_hash)
                for at, name in enumerate(hashes):
                    if prefix is None or name in self.mirror:
                        self.not_news.append(f"{event}")
                    page = tuple(event.token_ids)[at * self.scope.page : (at + 1) * self.scope.page]
                    prefix = (*(prefix or ()), *page)
                    self.mirror[name] = prefix
            elif type(event).__name__ == "BlockRemoved":
                self.not_news += [f"{event}" for name in hashes if self.mirror.pop(name, None) is None]
            else:
                self.mirror.clear()

    def perform(self, action: Do) -> Any:
        match action.what:
            case "match":
                return self.match(self.prompt(action.name))
            case "copy":
                return self.match_and_copy(self.prompt(action.name))
            case "evict":
                return self.evict(*action.amounts)
            case _:
                return getattr(self, action.what)(action.name)

    # --- what the engine asks of the tree

    def evict(self, full: int = 0, window: int = 0, states: int = 0) -> tuple[int, int, int]:
        """Evict so many tokens, tokens of the window, states; return what it says it did."""
        params = self.engine.base.EvictParams(num_tokens=full, swa_num_tokens=window, mamba_num=states)
        result = self.cache.evict(params)
        return result.num_tokens_evicted, result.swa_num_tokens_evicted, result.mamba_num_evicted

    def match(self, tokens: Tokens) -> Any:
        return self.cache.match_prefix(self.engine.base.MatchPrefixParams(key=self.engine.key(tokens)))

    def match_and_copy(self, tokens: Tokens) -> tuple[Any, Tokens]:
        """Match a prefix, with a slot for a copy of its state; give the slots taken for that back at once."""
        kv = SimpleNamespace(holds_mamba=False, mamba_pool_idx=None, mamba_cow_src_index=None, mamba_needs_clear=True)
        params = self.engine.base.MatchPrefixParams(
            key=self.engine.key(tokens), cow_mamba=True, req=SimpleNamespace(kv=kv, session=None, session_id=None)
        )
        result = self.cache.match_prefix(params)
        taken = () if kv.mamba_pool_idx is None else (int(kv.mamba_pool_idx),)
        self.pool.mamba_allocator.free(self.engine.tensor(list(taken)))
        return result, taken

    def free_slots(self) -> tuple[int, int]:
        """Count free slots, of full attention and of windows."""
        if self.scope.window is None:
            return self.slots.available_size(), self.scope.slots
        return self.slots.full_available_size(), self.slots.swa_available_size()

    def take(self, count: int) -> list[int] | None:
        """Take slots, by evicting if there are too few; None: there are not enough."""
        full, window = (max(0, count - free) for free in self.free_slots())
        if full or window:
            self.evict(full, window)
        if min(self.free_slots()) < count:
            return None
        if self.scope.window is None or self.scope.page == 1:
            return [int(slot) for slot in self.slots.alloc(count)]
        full_slots = self.slots.full_attn_allocator.alloc(count)
        self.slots.set_full_to_swa_mapping(full_slots, self.slots.swa_attn_allocator.alloc(count))
        return [int(slot) for slot in full_slots]

    def take_state(self) -> int | None:
        if not self.pool.mamba_allocator.available_size():
            self.evict(states=1)
        taken = self.pool.mamba_allocator.alloc(1)
        return None if taken is None else int(taken[0])

    def window_slot(self, slot: int) -> int:
        """Return the slot of the window that belongs to a slot, 0 if none."""
        return int(self.slots.full_to_swa_index_mapping[slot])

    # --- what requests do

    def tokens(self, name: str) -> Tokens:
        return self.scope.requests[int(name)][0]

    def prompt(self, name: str) -> Tokens:
        """Return what of a request is looked up: its prompt but the last token, which is left to compute."""
        tokens, prompt = self.scope.requests[int(name)]
        return tokens[: prompt - 1]

    def write(self, name: str, start: int) -> None:
        """Compute a request's tokens from a position on: slots, and the state behind the last."""
        run, tokens = self.runs[name], self.tokens(name)
        for position in range(start, run.computed):
            prefix, slot = tokens[: position + 1], run.table[position]
            self.ghosts.full[slot] = prefix
            if self.scope.window is not None and (other := self.window_slot(slot)):
                self.ghosts.window[other] = prefix
        if run.state is not None:
            self.ghosts.state[run.state] = tokens[: run.computed]

    def admit(self, name: str) -> bool:
        prompt = self.scope.requests[int(name)][1]
        found = self.match(self.prompt(name))
        lock, hit = self.cache.lock(found.last_device_node), int(found.device_prefix_len)
        table = [int(slot) for slot in self.cache.path_device_indices(found.last_device_node)][:hit]
        state = self.take_state() if self.scope.states else None
        new = (
            None
            if self.scope.states and state is None
            else self.take(-(-(prompt - hit) // self.scope.page) * self.scope.page)
        )
        if new is None:
            if state is not None:
                self.pool.mamba_allocator.free(self.engine.tensor([state]))
            self.cache.unlock(lock)
            return False
        self.runs[name] = Run(prompt, [*table, *new], hit, lock, hit, state, hit)
        self.write(name, hit)
        return True

    def grow(self, name: str) -> bool:
        run = self.runs[name]
        if run.computed == len(run.table):
            new = self.take(self.scope.page)
            if new is None:
                return False
            run.table += new
        run.computed += 1
        self.write(name, run.computed - 1)
        return True

    def checkpoint(self, name: str, finished: bool = False) -> bool:
        """Insert what is complete, and hold the tree's slots for it; not if there is no slot for a state."""
        run, base, page = self.runs[name], self.engine.base, self.scope.page
        state = run.state
        if self.scope.states and not finished:
            state = self.take_state()
            if state is None:
                return False
            self.ghosts.state[state] = self.tokens(name)[: run.computed]
        end = run.computed // page * page
        params = base.InsertParams(
            key=self.engine.key(self.tokens(name)[:end]),
            value=self.engine.tensor(run.table[:end]),
            prev_prefix_len=run.tree,
            mamba_value=None if state is None else self.engine.tensor([state]),
        )
        if self.scope.window is not None:
            params.set_evicted_seqlen(self.engine.types.SWA, run.dead if run.dead > run.tree else 0)
        result = self.cache.insert(params)
        if state is not None and result.mamba_exist:
            self.pool.mamba_allocator.free(self.engine.tensor([state]))
        run.state = None if finished else run.state
        held = [int(slot) for slot in self.cache.path_device_indices(result.last_device_node)]
        run.table[run.tree : len(held)] = held[run.tree :]
        self.cache.unlock(run.lock)
        run.lock = self.cache.lock(result.last_device_node)
        run.tree, run.dead = len(held), max(run.dead, len(held))
        return True

    def finish(self, name: str) -> None:
        """Insert what is complete, give back the rest and the lock."""
        self.checkpoint(name, finished=True)
        run = self.runs.pop(name)
        self.release(run)

    def abort(self, name: str) -> None:
        """Give back what is the request's own, and the lock."""
        run = self.runs.pop(name)
        if run.state is not None:
            self.pool.mamba_allocator.free(self.engine.tensor([run.state]))
        self.release(run)

    def release(self, run: Run) -> None:
        """Give back the slots that are the request's own, those without a slot in the window apart, and the lock."""
        alive = max(run.tree, run.dead)
        if run.table[run.tree : alive]:
            self.slots.free_full_segment(self.engine.tensor(run.table[run.tree : alive]), start_pos=run.tree)
        if run.table[alive:]:
            self.slots.free_segment(self.engine.tensor(run.table[alive:]), start_pos=alive)
        self.cache.unlock(run.lock)

    def slide(self, name: str) -> None:
        """Give back the slots behind the window, and, where the tree's part lies behind it, that part of the lock."""
        run, page, window = self.runs[name], self.scope.page, self.scope.window
        assert window is not None
        keep = -(-max(window, page) // page) * page
        start = max(run.dead, run.tree)
        end = (run.computed - 1 - keep) // page * page
        if end > start:
            self.slots.free_swa_segment(self.engine.tensor(run.table[start:end]), start_pos=start)
            run.dead = end
        if run.computed - run.tree >= window:
            self.cache.release_swa(run.lock)

    # --- what can be seen

    def nodes(self) -> list[tuple[Tokens, Any]]:
        """Return the nodes of the tree below its root, each with all tokens up to its end, in order of their tokens."""
        found, stack = [], [((), self.cache.tree_core.root_node)]
        while stack:
            prefix, node = stack.pop()
            for child in node.children.values():
                tokens = (*prefix, *child.key.raw_token_ids())
                found.append((tokens, child))
                stack.append((tokens, child))
        return sorted(found, key=lambda pair: pair[0])

    def pages(self) -> dict[Tokens, Page]:
        """Return the pages of the tree by the tokens up to their ends."""
        types, page, shown = self.engine.types, self.scope.page, {}
        for tokens, node in self.nodes():
            data = node.component_data
            start = len(tokens) - len(node.key)
            full = [int(slot) for slot in data[types.FULL].value]
            window = data[types.SWA].value
            window = None if window is None else [int(slot) for slot in window]
            state = None if data[types.MAMBA].value is None else int(data[types.MAMBA].value[0])
            for end in range(start + page, len(tokens) + 1, page):
                part, last = slice(end - page - start, end - start), end == len(tokens)
                locks = [data[each].lock_ref for each in self.cache.tree_components if last or each is not types.MAMBA]
                shown[tokens[:end]] = Page(
                    tuple(full[part]),
                    None if window is None else tuple(window[part]),
                    state if last else None,
                    tuple(locks + [0] * (len(self.cache.tree_components) - len(locks))),
                )
        return shown

    def free(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the free slots: of full attention, of windows, of states."""

        def spread(allocator: Any) -> tuple[int, ...]:
            pages = [int(each) for each in allocator.get_all_free_pages()]
            return tuple(each * self.scope.page + at for each in pages for at in range(self.scope.page))

        states = tuple(map(int, self.pool.mamba_allocator.free_slots)) if self.scope.states else ()
        if self.scope.window is None:
            return spread(self.slots), (), states
        return spread(self.slots.full_attn_allocator), spread(self.slots.swa_attn_allocator), states
