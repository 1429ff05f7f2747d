"""Part four, chapter 5: the laws of plans: which layouts of a device's memory are right; and all laws of part four."""

from fractions import Fraction
from itertools import pairwise

from ..law import listed
from .input_laws import INPUT_LAWS, ROW_LAWS
from .storage import (
    StoragePlan,
    block_bytes,
    config_of,
    held,
    held_in_all,
    is_packed,
    may_hold,
    places,
    plain_plans,
    used_bytes,
)


def law_layer_has_one_place(plan: StoragePlan) -> bool:
    """LAYOUT-1: every layer is in exactly one group, once, and no two of a group share a byte of a block."""
    placed = sorted(layer for group in plan.groups for layer in group.layers)
    own = [sorted(places(plan, group)) for group in plan.groups]
    return placed == list(range(len(plan.layers))) and all(
        group and all(one[0] < other[0] or one[2] <= other[1] for one, other in pairwise(group)) for group in own
    )


def law_group_is_of_one_kind(plan: StoragePlan) -> bool:
    """LAYOUT-2: layers of one group are of one kind and declare one block size, and all can do with the group's."""
    return all(
        len({(plan.layers[layer].kind, plan.layers[layer].block_size) for layer in group.layers}) == 1
        and may_hold(plan.layers[layer], group.block_size)
        for group in plan.groups
        for layer in group.layers
    )


def law_page_holds_its_layers(plan: StoragePlan) -> bool:
    """LAYOUT-3: a page has room for what any layer on its tensor keeps of a block, and every tensor has a layer."""
    own = [place for group in plan.groups for place in places(plan, group)]
    return {tensor for tensor, _, _ in own} == set(range(len(plan.pages))) and all(
        stop <= plan.pages[tensor] for tensor, _, stop in own
    )


def law_blocks_fit_the_memory(plan: StoragePlan) -> bool:
    """LAYOUT-4: all blocks, the null block among them, fit the memory."""
    return plan.num_blocks * block_bytes(plan) <= plan.memory


def law_no_block_more_fits(plan: StoragePlan) -> bool:
    """LAYOUT-5: one block more would not fit the memory."""
    return (plan.num_blocks + 1) * block_bytes(plan) > plan.memory


def law_longest_request_fits(plan: StoragePlan) -> bool:
    """LAYOUT-6: a request of the maximum length fits, alone, and the plan knows how many blocks that takes."""
    return plan.request_blocks == held_in_all(plan) <= plan.num_blocks - 1


def law_waste_is_what_nobody_uses(plan: StoragePlan) -> bool:
    """LAYOUT-7: the waste of a group is what its layers leave unused of a block."""
    return all(group.waste == block_bytes(plan) - used_bytes(plan, group) >= 0 for group in plan.groups)


def law_page_is_whole(plan: StoragePlan) -> bool:
    """LAYOUT-8: every page is a whole number of units, and every layer begins after one, so that all is aligned."""
    return all(size % plan.unit == 0 for size in (*plan.pages, *(at for group in plan.groups for at in group.offsets)))


def law_no_plain_plan_is_worth_more(plan: StoragePlan) -> bool:
    """LAYOUT-9: no plain plan holds more of the longest requests for the time of a step, beyond the permitted loss."""
    worth = Fraction(plan.num_blocks - 1, plan.request_blocks) / (1 + plan.group_cost * len(plan.groups))
    return all(
        blocks < request_blocks + 1
        or worth >= (1 - plan.loss) * Fraction(blocks - 1, request_blocks) / (1 + plan.group_cost * num_groups)
        for size, request_blocks, num_groups in plain_plans(plan)
        for blocks in (plan.memory // size,)
    )


def law_waste_is_permitted(plan: StoragePlan) -> bool:
    """LAYOUT-10: of the memory of a request of the maximum length, no more than the permitted share is waste."""
    config = config_of(plan)
    counts = tuple(held(config, group, plan.limits) for group in config.groups)
    wasted = sum(count * group.waste for count, group in zip(counts, plan.groups, strict=True))
    return wasted <= plan.padding * sum(counts) * block_bytes(plan)


def law_packed_plan_has_a_table_for_each_kind(plan: StoragePlan) -> bool:
    """LAYOUT-11: a packed plan has one tensor, and as many groups as there are kinds and declared block sizes."""
    kinds = {(layer.kind, layer.block_size) for layer in plan.layers}
    return not is_packed(plan) or (len(plan.pages), len(plan.groups)) == (1, len(kinds))


STORAGE_LAWS = (
    listed(law_layer_has_one_place, "vLLM get_kv_cache_config: kv_cache_groups"),
    listed(law_group_is_of_one_kind, "vLLM KVCacheGroupSpec"),
    listed(law_page_holds_its_layers, "vLLM unify_hybrid_kv_cache_specs, page_size_padded"),
    listed(law_blocks_fit_the_memory, "vLLM get_num_blocks"),
    listed(law_no_block_more_fits, "vLLM get_num_blocks"),
    listed(law_longest_request_fits, "vLLM check_enough_kv_cache_memory"),
    listed(law_waste_is_what_nobody_uses, "vLLM page_size_padded"),
    listed(law_page_is_whole, "vLLM page_size_padded"),
    listed(law_no_plain_plan_is_worth_more, "vLLM get_kv_cache_groups: the group size is chosen by a rule of thumb"),
    listed(law_waste_is_permitted, "vLLM page_size_padded"),
    listed(law_packed_plan_has_a_table_for_each_kind, "Jenga, transformers: pages in sizes of their own"),
)
"""Every law of plans."""

PART_FOUR_LAWS = (*INPUT_LAWS, *ROW_LAWS, *STORAGE_LAWS)
"""Every law of part four."""
