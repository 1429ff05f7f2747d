/* A KV-cache manager in one file of C: full attention, one group of layers, prefix caching.

   It speaks the protocol of docs/reference/vectors.md on stdin and stdout, and shows how little a manager in another language
   needs to be checked. Build and check it:

       cc -O2 -o manager examples/c_manager/manager.c
       blockwright vectors --run ./manager

   Blocks are found by the tokens they hold, compared one by one: no hash, no index. That is slow and short. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 256, TOKENS = 128, REQUESTS = 16, NAME = 32, LINE = 1 << 16 };

typedef struct {            /* a prefix: extra keys and tokens */
    int extra, count, tokens[TOKENS];
} Prefix;

typedef struct {
    int references;
    long published;         /* number of its publication, oldest first; 0: not published */
    Prefix key;             /* what it is published as */
} Block;

typedef struct {
    char name[NAME];        /* "": this place is free */
    int running, written;   /* slots were given up to `written` */
    int blocks, table[TOKENS], looked;  /* entries looked at for publication */
    int hit_blocks, hit[TOKENS];        /* what the last lookup found */
    Prefix prefix;
} Request;

static int num_blocks, max_len, size, caching;
static Block block[BLOCKS];
static int queue[BLOCKS], free_count;   /* free blocks, first to be taken first */
static long publications;
static Request request[REQUESTS];

static int smaller(int a, int b) { return a < b ? a : b; }

/* ---- the pool ---- */

static void enqueue(int at, int id) {
    memmove(queue + at + 1, queue + at, sizeof(int) * (free_count - at));
    queue[at] = id;
    free_count++;
}

static void dequeue(int id) {
    int at = 0;
    while (queue[at] != id) at++;
    free_count--;
    memmove(queue + at, queue + at + 1, sizeof(int) * (free_count - at));
}

static int take(void) {                 /* the first free block; what it held can no longer be found */
    int id = queue[0];
    dequeue(id);
    block[id].published = 0;
    block[id].references = 1;
    return id;
}

static void adopt(int id) {             /* one holder more; a free block leaves the queue and keeps its key */
    if (block[id].references == 0) dequeue(id);
    block[id].references++;
}

static void release(int id) {           /* candidates go to the tail, blocks without a key to the head */
    block[id].references--;
    if (block[id].references == 0) enqueue(block[id].published ? free_count : 0, id);
}

/* ---- prefixes ---- */

static int holds(int id, const Prefix *prefix, int end) {
    const Prefix *key = &block[id].key;
    return block[id].published && key->extra == prefix->extra && key->count == end &&
           memcmp(key->tokens, prefix->tokens, sizeof(int) * end) == 0;
}

static int holder(const Prefix *prefix, int end) {  /* the block that published these tokens first, or 0 */
    int best = 0;
    for (int id = 1; id < num_blocks; id++)
        if (holds(id, prefix, end) && (best == 0 || block[id].published < block[best].published)) best = id;
    return best;
}

static void find(Request *r) {          /* the longest hit that leaves a token to compute */
    int id;
    r->hit_blocks = 0;
    while (caching && (r->hit_blocks + 1) * size < r->prefix.count &&
           (id = holder(&r->prefix, (r->hit_blocks + 1) * size)) != 0)
        r->hit[r->hit_blocks++] = id;
}

static void publish(Request *r, int end) {
    if (!caching) return;
    for (; (r->looked + 1) * size <= end; r->looked++) {
        Block *b = &block[r->table[r->looked]];
        if (b->published) continue;
        b->published = ++publications;
        b->key = r->prefix;
        b->key.count = (r->looked + 1) * size;
    }
}

/* ---- what the engine calls ---- */

static Request *named(const char *name) {
    for (int at = 0; at < REQUESTS; at++)
        if (strcmp(request[at].name, name) == 0) return &request[at];
    return NULL;
}

static const char *grow(Request *r, int begin, int new, int ahead, int later, const Request *hit) {
    int adopted = hit ? hit->hit_blocks : 0, cached_free = 0;
    int entries = (smaller(begin + new + ahead, max_len) + size - 1) / size;
    int wanted = entries - r->blocks - adopted;
    if (begin + new > max_len || new + adopted == 0) return "error";
    for (int at = 0; at < adopted; at++) {
        if (!holds(hit->hit[at], &r->prefix, (at + 1) * size)) return "error stale";
        cached_free += block[hit->hit[at]].references == 0;
    }
    if (wanted < 0) wanted = 0;
    if (wanted + cached_free > free_count) return "refused";
    for (int at = 0; at < adopted; at++) adopt(r->table[r->blocks++] = hit->hit[at]);
    if (adopted) r->looked = adopted;
    while (wanted-- > 0) r->table[r->blocks++] = take();
    r->running = 1;
    r->written = begin + new;
    if (!later) publish(r, smaller(r->written, r->prefix.count));
    return "blocks";
}

static void empty(Request *r) {         /* tail first, so that the deepest prefix is evicted first */
    while (r->blocks > 0) release(r->table[--r->blocks]);
    r->running = r->looked = r->written = r->hit_blocks = 0;
}

static int reset(void) {
    if (free_count < num_blocks - 1) return 0;
    for (int id = 1; id < num_blocks; id++) block[id].published = 0;
    return 1;
}

static int shared(const Request *r, int running) {
    int at = 0;
    while (at < r->blocks && block[r->table[at]].references == running) at++;
    return at;
}

/* ---- the protocol ---- */

static void list(const int *numbers, int count) {
    if (count == 0) printf("-");
    for (int at = 0; at < count; at++) printf(at ? ",%d" : "%d", numbers[at]);
}

static void read_tokens(char *text, Prefix *prefix) {   /* appends them */
    if (strcmp(text, "-") == 0) return;
    for (char *save, *each = strtok_r(text, ",", &save); each; each = strtok_r(NULL, ",", &save))
        prefix->tokens[prefix->count++] = atoi(each);
}

static void new_manager(char **word, int words) {
    memset(block, 0, sizeof block);
    memset(request, 0, sizeof request);
    publications = free_count = 0;
    num_blocks = atoi(word[1]);
    max_len = atoi(word[2]);
    caching = 1;
    size = 0;
    for (int at = 3; at < words; at++) {
        if (strncmp(word[at], "full:", 5) == 0 && size == 0) size = atoi(word[at] + 5);
        else if (strcmp(word[at], "caching=0") == 0) caching = 0;
        else { printf("unsupported %s", word[at]); return; }
    }
    if (size < 1 || num_blocks > BLOCKS || max_len > TOKENS) { printf("unsupported size"); return; }
    for (int id = 1; id < num_blocks; id++) enqueue(free_count, id);
    printf("ok");
}

static void batch(char *word, int ahead) {  /* serves in order, until one does not fit */
    static int before[REQUESTS];
    Request *served[REQUESTS];
    int count = 0, whole = 1;
    for (char *save, *each = strtok_r(word, ";", &save); each; each = strtok_r(NULL, ";", &save)) {
        char *computed = strchr(each, ':'), *new = strchr(computed + 1, ':');
        *computed++ = 0;
        Request *r = named(each);
        before[count] = r->blocks;
        if (strcmp(grow(r, atoi(computed), atoi(new + 1), ahead, 0, NULL), "blocks") != 0) { whole = 0; break; }
        served[count++] = r;
    }
    printf("served %d %s ", count, whole ? "whole" : "part");
    if (count == 0) printf("-");
    for (int at = 0; at < count; at++) {
        if (at) printf(";");
        list(served[at]->table + before[at], served[at]->blocks - before[at]);
    }
}

static void state(char **word, int words) {
    int first = 1;
    printf("state tables=");
    for (int at = 1; at < words; at++) {
        Request *r = named(word[at]);
        if (at > 1) printf(";");
        if (r && r->running) list(r->table, r->blocks);
        else printf("none");
    }
    printf(" queue=");
    list(queue, free_count);
    printf(" references=");
    for (int id = 0; id < num_blocks; id++) printf(id ? ",%d" : "%d", block[id].references);
    printf(" keys=");
    for (int id = 1; id < num_blocks; id++)
        if (block[id].published) {
            printf(first ? "%d:0:%d:" : ";%d:0:%d:", id, block[id].key.extra);
            list(block[id].key.tokens, block[id].key.count);
            first = 0;
        }
    if (first) printf("-");
}

static void allocate(Request *r, char **word, int words) {
    int ahead = 0, later = 0, before = r->blocks, hit_length = atoi(word[4]);
    const Request *hit = hit_length ? named(word[5]) : NULL;
    for (int at = 6; at < words; at++) {
        if (strncmp(word[at], "lookahead=", 10) == 0) ahead = atoi(word[at] + 10);
        else if (strcmp(word[at], "later=1") == 0) later = 1;
        else if (strncmp(word[at], "drafts=", 7) != 0) { printf("unsupported %s", word[at]); return; }
    }
    if (hit_length && (!hit || r->running || hit->hit_blocks * size != hit_length)) { printf("error"); return; }
    const char *said = grow(r, hit ? hit_length : atoi(word[2]), atoi(word[3]), ahead, later, hit);
    printf("%s", said);
    if (strcmp(said, "blocks") == 0) {
        printf(" ");
        before += hit ? hit->hit_blocks : 0;
        list(r->table + before, r->blocks - before);
    }
}

static void send(Request *r, char **word) {
    if (!r) r = named("");              /* a place that is free */
    if (!r || strlen(word[1]) >= NAME) { printf("error too many requests, or too long a name"); return; }
    memset(r, 0, sizeof *r);
    strcpy(r->name, word[1]);
    r->prefix.extra = atoi(word[2]);
    read_tokens(word[3], &r->prefix);
    printf("ok");
}

static void answer(char **word, int words) {
    const char *call = word[0];
    if (strcmp(call, "hello") == 0)
        printf("hello 1 c_manager kinds=full features=caching,uncached,lookahead,drafts,extra_keys "
               "calls=chunks,later,trim,preempt,reset,hold,unasked,adopt,batch policy=lru");
    else if (strcmp(call, "new") == 0) new_manager(word, words);
    else if (strcmp(call, "state") == 0) state(word, words);
    else if (strcmp(call, "reset") == 0) printf(reset() ? "ok" : "refused");
    else if (strcmp(call, "batch") == 0) batch(word[2], atoi(word[1]));
    else {
        Request *r = words > 1 ? named(word[1]) : NULL;
        if (strcmp(call, "send") == 0) send(r, word);
        else if (strcmp(call, "free") == 0) { if (r) empty(r); printf("ok"); }
        else if (strcmp(call, "forget") == 0) { if (r) memset(r, 0, sizeof *r); printf("ok"); }
        else if (!r) printf("error no such request");
        else if (strcmp(call, "find") == 0) {
            find(r);
            printf("hit %d ", r->hit_blocks * size);
            list(r->hit, r->hit_blocks);
        }
        else if (strcmp(call, "allocate") == 0) allocate(r, word, words);
        else if (strcmp(call, "append") == 0) { read_tokens(word[2], &r->prefix); printf("ok"); }
        else if (strcmp(call, "publish") == 0) { publish(r, smaller(atoi(word[2]), r->prefix.count)); printf("ok"); }
        else if (strcmp(call, "trim") == 0) printf("ok");   /* full attention reads everything */
        else if (strcmp(call, "common") == 0) printf("counts %d", shared(r, atoi(word[2])));
        else printf("error no such call");
    }
}

int main(void) {
    static char line[LINE];
    char *word[64];
    while (fgets(line, sizeof line, stdin)) {
        int words = 0;
        for (char *save, *each = strtok_r(line, " \n", &save); each && words < 64; each = strtok_r(NULL, " \n", &save))
            word[words++] = each;
        if (words > 0) answer(word, words);
        printf("\n");
        fflush(stdout);
    }
    return 0;
}
