/* The floor: the manager's hot paths over flat arrays, as little as the semantics allow.
 *
 * What is kept: reference counts, one free queue (blocks without content first, then eviction candidates in LRU
 * order), an open-addressing index from a 128-bit digest to a block, block tables of flat ids, release tail first.
 * What is left out: argument checks, refusals, trimming, duplicates of equal content, events, several layer kinds.
 * So it tells how much a manager could still gain, not how fast a manager is.
 *
 * Every floor_* function sets up, times the same region as its Python twin, and returns nanoseconds per unit; a
 * negative number means that it failed its own check. Build: cc -O3 -shared -fPIC -o libfloor.so floor.c
 */
#define _POSIX_C_SOURCE 199309L
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCK_SIZE = 16, BURST = 20, DECODING = 250, DECODE_STEPS = 16 };

typedef struct { uint64_t low, high; } Digest; /* {0, 0}: no content */

typedef struct {
    int32_t num_blocks, num_free;
    char *memory;          /* of all arrays below */
    int32_t *count;        /* holders of a block */
    int32_t *prev, *next;  /* free queue, circular; block 0 (the null block) is its anchor */
    Digest *key;
    int32_t *slot;         /* index: block ids, 0 = empty */
    uint64_t mask;
} Pool;

typedef struct {
    Digest *digests;       /* of every full block */
    int32_t *table;
    int32_t num_blocks;    /* entries of the table */
    int32_t num_published;
    int32_t num_computed;  /* tokens */
} Request;

static double now(void) /* CPU time of this thread, ns */
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static double since(double start) /* what the two readings themselves take left out */
{
    static double reading = -1;
    double stop = now();
    if (reading < 0) {
        reading = 1e9;
        for (int i = 0; i < 1000; i++) {
            double first = now(), second = now();
            reading = second - first < reading ? second - first : reading;
        }
    }
    return stop - start - reading;
}

static uint64_t random_state = 1;

static uint64_t random_word(void) /* splitmix64 */
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Cut an array off the pool's memory. Arrays begin at different places within a page: where two begin alike, a load
 * from one waits for a store to the other at the same index (the processor compares the lower 12 bits first). */
static void *cut(char **at, size_t bytes)
{
    void *array = *at;
    *at += (bytes + 4095) / 4096 * 4096 + 320;
    return array;
}

static void pool_init(Pool *p, int32_t num_blocks)
{
    uint64_t slots = 16;
    size_t n = (size_t)num_blocks;
    while (slots < 2 * n)
        slots *= 2;
    size_t bytes = n * (3 * sizeof *p->count + sizeof *p->key) + slots * sizeof *p->slot + 5 * (4096 + 320);
    char *at = p->memory = malloc(bytes);
    memset(p->memory, 0, bytes);
    p->num_blocks = num_blocks;
    p->num_free = num_blocks - 1;
    p->count = cut(&at, n * sizeof *p->count);
    p->prev = cut(&at, n * sizeof *p->prev);
    p->next = cut(&at, n * sizeof *p->next);
    p->key = cut(&at, n * sizeof *p->key);
    p->slot = cut(&at, slots * sizeof *p->slot);
    p->mask = slots - 1;
    for (int32_t b = 0; b < num_blocks; b++) {
        p->next[b] = b + 1 < num_blocks ? b + 1 : 0;
        p->prev[b] = b > 0 ? b - 1 : num_blocks - 1;
    }
}

static void request_init(Request *r, int32_t num_blocks)
{
    r->digests = malloc((size_t)num_blocks * sizeof *r->digests);
    r->table = malloc((size_t)num_blocks * sizeof *r->table);
    r->num_blocks = r->num_published = r->num_computed = 0;
    for (int32_t i = 0; i < num_blocks; i++)
        r->digests[i] = (Digest){random_word() | 1, random_word()};
}

static void request_free(Request *r)
{
    free(r->digests), free(r->table);
}

static inline int32_t find(const Pool *p, Digest d)
{
    for (uint64_t i = d.low & p->mask;; i = (i + 1) & p->mask) {
        int32_t b = p->slot[i];
        if (b == 0 || (p->key[b].low == d.low && p->key[b].high == d.high))
            return b;
    }
}

static inline void publish(Pool *p, int32_t block, Digest d)
{
    uint64_t i = d.low & p->mask;
    while (p->slot[i] != 0)
        i = (i + 1) & p->mask;
    p->slot[i] = block;
    p->key[block] = d;
}

static inline void drop(Pool *p, int32_t block)
{
    uint64_t hole = p->key[block].low & p->mask;
    while (p->slot[hole] != block)
        hole = (hole + 1) & p->mask;
    p->key[block] = (Digest){0, 0};
    for (uint64_t i = (hole + 1) & p->mask;; i = (i + 1) & p->mask) { /* close the gap */
        int32_t b = p->slot[i];
        if (b == 0)
            break;
        uint64_t home = p->key[b].low & p->mask;
        if (((i - home) & p->mask) >= ((i - hole) & p->mask)) {
            p->slot[hole] = b;
            hole = i;
        }
    }
    p->slot[hole] = 0;
}

static inline void unlink_block(Pool *p, int32_t b)
{
    p->next[p->prev[b]] = p->next[b];
    p->prev[p->next[b]] = p->prev[b];
    p->num_free--;
}

static inline void link_before(Pool *p, int32_t b, int32_t next)
{
    int32_t prev = p->prev[next];
    p->prev[b] = prev, p->next[b] = next;
    p->next[prev] = b, p->prev[next] = b;
    p->num_free++;
}

static inline int32_t take(Pool *p)
{
    int32_t b = p->next[0];
    unlink_block(p, b);
    if (p->key[b].low != 0)
        drop(p, b);
    p->count[b] = 1;
    return b;
}

static inline int allocate(Pool *p, Request *r, int32_t num_tokens)
{
    int32_t end = r->num_computed + num_tokens;
    int32_t num_blocks = (end + BLOCK_SIZE - 1) / BLOCK_SIZE;
    if (num_blocks - r->num_blocks > p->num_free)
        return 0;
    while (r->num_blocks < num_blocks)
        r->table[r->num_blocks++] = take(p);
    for (; r->num_published < end / BLOCK_SIZE; r->num_published++)
        publish(p, r->table[r->num_published], r->digests[r->num_published]);
    return 1;
}

static inline int32_t lookup(const Pool *p, const Digest *digests, int32_t num_blocks, int32_t *hit)
{
    int32_t n = 0;
    while (n < num_blocks && (hit[n] = find(p, digests[n])) != 0)
        n++;
    return n;
}

static inline void adopt(Pool *p, Request *r, const int32_t *hit, int32_t num_blocks)
{
    for (int32_t i = 0; i < num_blocks; i++) {
        int32_t b = hit[i];
        if (p->count[b]++ == 0)
            unlink_block(p, b);
        r->table[i] = b;
    }
    r->num_blocks = r->num_published = num_blocks;
    r->num_computed = num_blocks * BLOCK_SIZE;
}

static inline void release(Pool *p, Request *r)
{
    for (int32_t i = r->num_blocks - 1; i >= 0; i--) {
        int32_t b = r->table[i];
        if (--p->count[b] == 0)
            link_before(p, b, p->key[b].low != 0 ? 0 : p->next[0]);
    }
    r->num_blocks = r->num_published = r->num_computed = 0;
}

/* A whole decode step of `num_requests` in one call; per request. */
double floor_decode(int32_t num_requests, int32_t num_steps, int32_t prompt)
{
    Pool p;
    Request *r = malloc((size_t)num_requests * sizeof *r);
    int32_t most = (prompt + BLOCK_SIZE + num_steps) / BLOCK_SIZE + 1;
    int ok = 1;
    pool_init(&p, num_requests * most + 1);
    for (int32_t i = 0; i < num_requests; i++) {
        request_init(&r[i], most);
        ok &= allocate(&p, &r[i], prompt + i % BLOCK_SIZE);
        r[i].num_computed = prompt + i % BLOCK_SIZE;
    }
    double start = now();
    for (int32_t step = 0; step < num_steps; step++)
        for (int32_t i = 0; i < num_requests; i++) {
            ok &= allocate(&p, &r[i], 1);
            r[i].num_computed++;
        }
    double spent = since(start);
    for (int32_t i = 0; i < num_requests; i++)
        ok &= r[i].num_published == r[i].num_computed / BLOCK_SIZE, request_free(&r[i]);
    free(p.memory), free(r);
    return ok ? spent / num_requests / num_steps : -1;
}

/* One request of `num_blocks`: out = {prefill, lookup, adopt, release}, per block. Returns 0 if all went well. */
int floor_one_request(int32_t num_blocks, int32_t rounds, double *out)
{
    Pool p;
    Request r;
    int32_t *hit = malloc((size_t)num_blocks * sizeof *hit);
    double units = (double)num_blocks * rounds, start;
    int ok = 1;
    request_init(&r, num_blocks + 1);
    pool_init(&p, num_blocks + 2); /* a first round touches the memory, as in a pool that has been in use */
    out[0] = out[1] = out[2] = out[3] = 0;
    for (int32_t round = -1; round < rounds; round++) {
        if (round == 0)
            out[0] = out[1] = out[2] = out[3] = 0;
        start = now();
        ok &= allocate(&p, &r, num_blocks * BLOCK_SIZE);
        out[0] += since(start);
        release(&p, &r);
        start = now();
        ok &= lookup(&p, r.digests, num_blocks, hit) == num_blocks;
        out[1] += since(start);
        start = now();
        adopt(&p, &r, hit, num_blocks);
        ok &= allocate(&p, &r, 1);
        out[2] += since(start);
        start = now();
        release(&p, &r);
        out[3] += since(start);
        for (int32_t b = 1; b < p.num_blocks; b++) /* reset the cache */
            if (p.key[b].low != 0)
                drop(&p, b);
        ok &= p.num_free == p.num_blocks - 1;
    }
    free(p.memory), request_free(&r), free(hit);
    for (int i = 0; i < 4; i++)
        out[i] /= units;
    return ok ? 0 : -1;
}

/* Admit and release requests that evict one another, every block another block; per block. */
double floor_churn(int32_t pool_blocks, int32_t num_requests, int32_t num_blocks, int32_t rounds)
{
    Pool p;
    Request *r = malloc((size_t)num_requests * sizeof *r);
    int32_t *hit = malloc((size_t)num_blocks * sizeof *hit);
    double start = 0;
    int ok = 1;
    pool_init(&p, pool_blocks + 1);
    for (int32_t i = 0; i < num_requests; i++)
        request_init(&r[i], num_blocks);
    for (int32_t round = -1; round < rounds; round++) {
        if (round == 0)
            start = now();
        for (int32_t i = 0; i < num_requests; i++) {
            ok &= lookup(&p, r[i].digests, num_blocks, hit) == 0;
            ok &= allocate(&p, &r[i], num_blocks * BLOCK_SIZE);
            release(&p, &r[i]);
        }
    }
    start = since(start) / ((double)rounds * num_requests * num_blocks);
    for (int32_t i = 0; i < num_requests; i++)
        request_free(&r[i]);
    free(p.memory), free(r), free(hit);
    return ok ? start : -1;
}

/* A full pool, and `num_sampled` of its requests, admitted in bursts: out = {lookup, adopt, release, churn}, per block,
 * and then decode, per request and step, of short requests that evict them. In order, requests were admitted one after
 * another; scattered, they grew side by side in shuffled order. Returns 0 if all went well. */
int floor_scaling(int32_t num_requests, int32_t num_blocks, int32_t num_sampled, int32_t scattered, double *out)
{
    Pool p;
    Request *r = malloc((size_t)num_requests * sizeof *r);
    Request *fresh = malloc((size_t)num_sampled * sizeof *fresh);
    int32_t *hits = calloc((size_t)BURST * num_blocks, sizeof *hits);
    int32_t *order = malloc((size_t)num_requests * sizeof *order);
    double units = (double)num_sampled * num_blocks, start;
    uint64_t touched = 0;
    int ok = 1;
    pool_init(&p, num_requests * num_blocks + 1);
    for (int32_t i = 0; i < num_requests; i++)
        request_init(&r[i], num_blocks), order[i] = i;
    for (int32_t i = 0; i < num_sampled; i++)
        request_init(&fresh[i], num_blocks);
#define SHUFFLE()                                                                                                      \
    for (int32_t i = num_requests - 1; i > 0; i--) {                                                                   \
        int32_t j = (int32_t)(random_word() % (uint64_t)(i + 1)), t = order[i];                                        \
        order[i] = order[j], order[j] = t;                                                                             \
    }
    for (int32_t step = 0; step < (scattered ? num_blocks : 1); step++) {
        int32_t num_tokens = scattered ? BLOCK_SIZE : num_blocks * BLOCK_SIZE;
        if (scattered)
            SHUFFLE();
        for (int32_t i = 0; i < num_requests; i++) {
            ok &= allocate(&p, &r[order[i]], num_tokens);
            r[order[i]].num_computed += num_tokens;
        }
    }
    if (scattered)
        SHUFFLE();
    for (int32_t i = 0; i < num_requests; i++)
        release(&p, &r[order[i]]);
    for (int32_t round = 0; round < 3; round++) { /* the last one counts */
        SHUFFLE();
        out[0] = out[1] = 0;
        for (int32_t first = 0; first < num_sampled; first += BURST) {
            int32_t stop = first + BURST < num_sampled ? first + BURST : num_sampled;
            for (int32_t i = first; i < stop; i++) /* digests have just been computed when they are looked up */
                for (int32_t j = 0; j < num_blocks; j++)
                    touched ^= r[order[i]].digests[j].low ^ r[order[i]].digests[j].high;
            start = now();
            for (int32_t i = first; i < stop; i++)
                ok &= lookup(&p, r[order[i]].digests, num_blocks, hits + (i - first) * num_blocks) == num_blocks;
            out[0] += since(start) / units;
            start = now();
            for (int32_t i = first; i < stop; i++)
                adopt(&p, &r[order[i]], hits + (i - first) * num_blocks, num_blocks);
            out[1] += since(start) / units;
        }
        start = now();
        for (int32_t i = 0; i < num_sampled; i++)
            release(&p, &r[order[i]]);
        out[2] = since(start) / units;
    }
    random_state ^= touched & 1;
    start = now();
    for (int32_t i = 0; i < num_sampled; i++) {
        ok &= lookup(&p, fresh[i].digests, num_blocks, hits) == 0;
        ok &= allocate(&p, &fresh[i], num_blocks * BLOCK_SIZE);
        release(&p, &fresh[i]);
    }
    out[3] = since(start) / units;
    int32_t fitting = num_requests * num_blocks / 4, decoding = fitting < DECODING ? fitting : DECODING;
    Request *running = malloc((size_t)decoding * sizeof *running);
    for (int32_t i = 0; i < decoding; i++) {
        request_init(&running[i], 2 + DECODE_STEPS / BLOCK_SIZE);
        ok &= allocate(&p, &running[i], 1 + i % BLOCK_SIZE);
        running[i].num_computed = 1 + i % BLOCK_SIZE;
    }
    out[4] = 0;
    for (int32_t step = 0; step < DECODE_STEPS; step++) {
        start = now();
        for (int32_t i = 0; i < decoding; i++)
            ok &= allocate(&p, &running[i], 1);
        if (decoding > 0)
            out[4] += since(start) / (decoding * DECODE_STEPS);
        for (int32_t i = 0; i < decoding; i++)
            running[i].num_computed++;
    }
    for (int32_t i = 0; i < decoding; i++)
        request_free(&running[i]);
    free(running);
    for (int32_t i = 0; i < num_requests; i++)
        request_free(&r[i]);
    for (int32_t i = 0; i < num_sampled; i++)
        request_free(&fresh[i]);
    free(p.memory), free(r), free(fresh), free(hits), free(order);
    return ok ? 0 : -1;
}
