"""Part one, chapter 7: the policy that settles every choice: contentless blocks first, then the least recently used.

The queue keeps blocks without content before candidates (QUEUE-1). A candidate goes to the tail when its last holder
leaves, a block without content to the head; a request's tables are released group by group, each from its tail, so that
the deepest prefix of a group is evicted first. Equal content is served by the block that published it first, which is
the one most often adopted.
"""

from .choices import Choice

LRU = Choice(
    take=lambda queue, count: queue[:count],
    order=lambda batch: tuple(block for table in batch for block in table[::-1]),
    serve=lambda holders: holders[0],
)
"""Takes the head of the queue, releases tail first, serves hits from the oldest publication."""
