/* mesh_checkpoint.h: saved on one mesh and loaded on another; every call that fails, every byte that is wrong. */
#ifndef T_CHECKPOINT_H
#define T_CHECKPOINT_H
#include "states.h"

/* ---- the format ---- */

static mesh_transport checkpoint_alone; /* for its allocator, which is malloc */

static void test_checkpoint_crc(void) {
    static unsigned char data[5000];
    static mesh__crc c;
    test_random r = random_from(1);
    int i, k;
    mesh__crc_make(&c);
    CHECK_INT(mesh__crc_whole(&c, mesh__crc_place(&c, "123456789", 9, 0), 9), 0xe3069283); /* the catalogue's check */
    CHECK_INT(mesh__crc_whole(&c, mesh__crc_place(&c, data, 32, 0), 32), 0x8a9136aa);      /* RFC 3720, B.4: 32 zeros */
    for (i = 0; i < 5000; i++) data[i] = (unsigned char)random_next(&r);
    for (i = 0; i < 300; i++) { /* pieces in any order, against one bit at a time */
        int n = random_below(&r, 5000), cut[4] = {0}, order = random_below(&r, 3);
        uint32_t slow = UINT32_C(0xffffffff), sum = 0;
        for (k = 0; k < 8 * n; k++)
            slow = (slow ^ (data[k / 8] >> k % 8 & 1)) & 1 ? slow >> 1 ^ UINT32_C(0x82f63b78) : slow >> 1;
        cut[1] = random_below(&r, n + 1), cut[2] = cut[1] + random_below(&r, n - cut[1] + 1), cut[3] = n;
        for (k = 0; k < 3; k++) {
            int p = (k + order) % 3;
            sum ^= mesh__crc_place(&c, data + cut[p], (size_t)(cut[p + 1] - cut[p]), n - cut[p + 1]);
        }
        CHECK_INT(mesh__crc_whole(&c, sum, n), (uint32_t)~slow);
    }
}

/* What a header of this text is refused with; NULL: it is taken. */
static void header_is(const char *text, int64_t data_bytes, const char *why) {
    mesh__catalog c = MESH_ZERO;
    mesh_error err;
    size_t n = strlen(text);
    char *copy = (char *)malloc(n + 1); /* so that a sanitizer sees a step beyond */
    mesh_status status;
    c.t = &checkpoint_alone;
    memcpy(copy, text, n);
    status = mesh__header_read(&c, 0, copy, n, data_bytes, "it", &err);
    CHECK_INT(status, why ? MESH_ERR_ARGUMENT : MESH_OK);
    if (status) CHECK_HAS(err.text, why ? why : "nothing");
    mesh__catalog_free(&c);
    free(copy);
}

static void test_checkpoint_header(void) {
    static const char one[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}";
    char text[4000];
    size_t i;
    header_is(one, 24, NULL);
    header_is(" {} ", 0, NULL);
    header_is("{\"__metadata__\":{\"x\":\"y\"},\"s\":{\"shape\":[],\"data_offsets\":[0,8],\"dtype\":\"I64\"}}", 8,
              NULL);
    header_is("{\"z\":{\"dtype\":\"U8\",\"shape\":[4611686018427387904,0,9],\"data_offsets\":[0,0]}}", 0, NULL);
    header_is("{\"z\":{\"dtype\":\"F4\",\"shape\":[7],\"data_offsets\":[0,3]}}", 3,
              NULL); /* not ours, but no reason to refuse the rest */
    header_is(one, 25, "its tensors have 24 bytes of data, the file holds 25");
    header_is(one, 23, "its tensors have 24 bytes of data, the file holds 23");
    for (i = 0; i < sizeof one - 1; i++) { /* cut off anywhere */
        memcpy(text, one, i);
        text[i] = 0;
        header_is(text, 24, "byte ");
    }
    header_is("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,24]}}", 24, "not as long as the shape");
    header_is("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0,
              "not as long as the shape");
    header_is("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", 3,
              "the data of \"a\" begin at byte 1, but those before end at 0");
    header_is(
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
        3, "the data of \"b\" begin at byte 1");
    header_is("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,1]}}", 3, "end before they begin");
    header_is("{\"a\":{\"dtype\":\"U8\",\"shape\":[-2],\"data_offsets\":[0,2]}}", 2, "expected a number from 0 on");
    header_is("{\"a\":{\"dtype\":\"U8\",\"shape\":[02],\"data_offsets\":[0,2]}}", 2, "begins with 0");
    header_is("{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775808],\"data_offsets\":[0,2]}}", 2, "above 2^63 - 1");
    header_is("{\"a\":{\"dtype\":\"U8\",\"shape\":[0,9223372036854775807],\"data_offsets\":[0,0]}}", 0, NULL);
    header_is("{\"a\":{\"dtype\":\"U8\",\"shape\":[2]}}", 2, "without dtype, shape or data_offsets");
    header_is("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"shape\":[2],\"data_offsets\":[0,2]}}", 2, "a key twice");
    header_is("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"more\":1,\"data_offsets\":[0,2]}}", 2,
              "other than dtype, shape, data_offsets");
    header_is("{,}", 0, "expected a string");
    header_is("{} x", 0, "something follows the end");
    header_is("{\"\\ud800\":1}", 0, "half a surrogate pair");
    header_is("{\"\\u0000\":1}", 0, "a zero byte");
    header_is("{\"\\x\":1}", 0, "no such escape");
    header_is("{\"\\u12g4\":1}", 0, "four hex digits");
    header_is("{\"a\nb\":1}", 0, "a control byte");
    header_is("{\"\xc0\xaf\":1}", 0, "no UTF-8");
    header_is("{\"\xed\xa0\x80\":1}", 0, "no UTF-8");
    header_is("{\"\xf4\x90\x80\x80\":1}", 0, "no UTF-8");
    header_is("{\"\xe2\x82", 0, "no UTF-8");
    strcpy(text, "{\"__metadata__\":");
    for (i = 0; i < 1000; i++) strcat(text, "[");
    header_is(text, 0, "within more than 16 others");
    header_is("{\"__metadata__\":[1,-2.5e+3,true,false,null,\"\",{\"x\":{}}]}", 0, NULL);
    header_is("{\"__metadata__\":{\"x\\u0000\":\"\\u0000y\"}}", 0, NULL); /* nobody reads it, and Python writes it */
    header_is("{\"__metadata__\":{\"x\":\"\\u0000\"},\"\\u0000\":1}", 0, "a zero byte");
    header_is("{\"__metadata__\":{\"x\":\"\\u000\"}}", 0, "four hex digits");
    header_is("{\"__metadata__\":[1.]}", 0, "expected a digit");
    header_is("{\"__metadata__\":[01]}", 0, "a comma or the closing bracket");
    header_is("{\"__metadata__\":[nul]}", 0, "expected a value");
    header_is("{\"__metadata__\":[1,]}", 0, "expected a value");
}

/* Bytes changed, doubled and left out at random: nothing beyond is read, and what is taken covers its data. */
static void test_checkpoint_hostile(void) {
    static const char *const seeds[] = {
        "{\"__metadata__\":{\"x\":\"\\u20ac\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[24,25]}}",
        "{\"metadata\":{\"total_size\":25,\"files\":{\"f\":{\"bytes\":9,\"crc32c\":1}}},\"weight_map\":{\"a\":\"f\",\"b\":\"g\"}}"};
    static const char put[] = "\"{}[]:,\\u0123456789-+eE.tfn \x80\xed\xf4";
    test_random r = random_from(21);
    int i, k, taken = 0;
    for (i = 0; i < 100000 && !test_failures; i++) {
        const char *seed = seeds[i & 1];
        size_t n = strlen(seed), at;
        char *text = (char *)malloc(n + 4);
        mesh__catalog c = MESH_ZERO;
        mesh_error err;
        mesh_status status;
        memcpy(text, seed, n);
        for (k = random_below(&r, 3); k >= 0; k--) {
            int what = random_below(&r, 4);
            at = (size_t)random_below(&r, (int)n);
            if (what < 2) text[at] = put[random_below(&r, sizeof put - 1)];
            if (what == 2) memmove(text + at, text + at + 1, n - at - 1), n--;
            if (what == 3 && n < strlen(seed) + 3) memmove(text + at + 1, text + at, n - at), n++;
        }
        text = (char *)realloc(text, n);
        c.t = &checkpoint_alone;
        status = i & 1 ? mesh__index_read(&c, text, n, &err) : mesh__header_read(&c, 0, text, n, 25, "it", &err);
        CHECK(status == MESH_OK || (status == MESH_ERR_ARGUMENT && err.text[0]));
        if (status == MESH_OK && !(i & 1)) {
            int64_t total = 0;
            for (k = 0; k < c.n; k++) total += c.tensor[k].nbytes;
            CHECK_INT(total, 25);
        }
        for (k = 0; k < c.nfiles && !status; k++) CHECK(!strchr(c.file[k].name, '/') && c.file[k].name[0]);
        taken += status == MESH_OK;
        mesh__catalog_free(&c);
        free(text);
    }
    CHECK(taken > 1000 && taken < 90000);
}

/* An index of very many files, each with two tensors: every tensor is in its own, in the order in which they were named. */
static void test_checkpoint_many_files(void) {
    enum { FILES = 30000, EACH = 32 };
    char *text = (char *)malloc(FILES * 2 * EACH + 64), *at = text;
    mesh__catalog c = MESH_ZERO;
    mesh_error err;
    int i, wrong = 0;
    at += sprintf(at, "{\"weight_map\":{");
    for (i = 0; i < 2 * FILES; i++) at += sprintf(at, "%s\"%d\":\"f%d\"", i ? "," : "", i, i % FILES * 7 % FILES);
    at += sprintf(at, "}}");
    c.t = &checkpoint_alone;
    CHECK_OK(mesh__index_read(&c, text, (size_t)(at - text), &err), err);
    CHECK_INT(c.nfiles, FILES);
    CHECK_INT(c.n, 2 * FILES);
    for (i = 0; i < c.n; i++) wrong += c.tensor[i].file != i % FILES || atoi(c.file[i % FILES].name + 1) != i % FILES * 7 % FILES;
    CHECK_INT(wrong, 0);
    mesh__catalog_free(&c);
    free(text);
}

/* What is wrong with a folder of a long path is still in the error. */
static void long_folder_rank(mesh_transport *t, void *ctx) {
    static const char *const names[] = {"model.safetensors.index.json", "model-00001-of-00001-ffffffff.safetensors"};
    char folder[1000], path[1100];
    size_t n;
    int i, fd;
    int64_t length;
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "x=1", NULL, 60 * SECOND)) return;
    snprintf(folder, sizeof folder, "%.200s", checkpoint_folder);
    for (i = 0; i < 3; i++) {
        n = strlen(folder);
        memset(folder + n, 'd', 200);
        folder[n] = '/', folder[n + 200] = 0;
        CHECK(!mkdir(folder, 0700));
    }
    for (i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        fd = open(path, O_CREAT | O_WRONLY, 0600);
        CHECK(fd >= 0 && !ftruncate(fd, i ? 0 : MESH__HEADER_MOST + 1));
        close(fd);
    }
    CHECK_INT(mesh_checkpoint_text(&c, folder, "key", NULL, 0, &length), MESH_ERR_ARGUMENT);
    CHECK_HAS(c.error.text, "bytes; at most ");
    CHECK_INT(mesh_checkpoint_save(&c, folder, NULL, 0, NULL), MESH_ERR_ARGUMENT);
    CHECK_HAS(c.error.text, "holds the last of all numbers of saves");
    for (i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    for (i = 0; i < 3; i++) {
        rmdir(folder);
        *strrchr(folder, '/') = 0;
    }
    mesh_comm_close(&c);
}

/* Of a long path the begin and the end are shown, and what the system said. */
static void test_checkpoint_long_path(void) {
    char path[1000];
    mesh_error err;
    memset(path, 'd', sizeof path - 1);
    path[0] = '/', path[sizeof path - 1] = 0;
    memcpy(path + sizeof path - 5, "last", 4);
    errno = ENOENT;
    CHECK_INT(mesh__file_failed(&err, "mkdir", path), MESH_ERR_STATE);
    CHECK_HAS(err.text, "mkdir /ddddddddd");
    CHECK_HAS(err.text, "dd...dd");
    CHECK_HAS(err.text, "ddlast: ");
    CHECK_HAS(err.text, strerror(ENOENT));
    path[207] = 0;
    CHECK(!strcmp(mesh__path_short(path).text, path));
    folder_new();
    run_world(SIM, 1, long_folder_rank, NULL);
    folder_end();
}

/* Strings come back as they were: what is written is read, escapes of any kind are their characters. */
static void test_checkpoint_strings(void) {
    static const char raw[] = "\"\\u00e9\\ud83d\\ude00\\/\\b\\f\\n\\r\\t\\\\\\\"\\u20ac\\u007f\"",
                      want[] = "\xc3\xa9\xf0\x9f\x98\x80/\b\f\n\r\t\\\"\xe2\x82\xac\x7f";
    char text[sizeof raw];
    mesh__json j;
    test_random r = random_from(8);
    int i, k;
    memcpy(text, raw, sizeof raw);
    j = mesh__json_of(text, sizeof raw - 1);
    CHECK_STR(mesh__json_string(&j), want);
    for (i = 0; i < 2000; i++) {
        mesh__bytes b = MESH_ZERO;
        char s[64];
        const char *got;
        int n = random_below(&r, 20);
        for (s[0] = 0, k = 0; k < n; k++) {
            static const char *const part[] = {
                "\"", "\\", "/", "\x01", "\x1f", "\n", "a", "\xc3\xa9", "\xf0\x9f\x98\x80", "\x7f", "\xe0\xa0\x80"};
            strcat(s, part[random_below(&r, 11)]);
        }
        s[sizeof s - 1] = 0;
        b.t = &checkpoint_alone;
        mesh__json_put(&b, s);
        j = mesh__json_of(b.p, (size_t)b.len);
        got = mesh__json_string(&j);
        CHECK(got && !strcmp(got, s) && j.p == j.end && mesh__is_utf8(s));
        mesh_transport_free(b.t, b.p);
    }
    CHECK(!mesh__is_utf8("a\xff") && !mesh__is_utf8("\xc3") && mesh__is_utf8(""));
}

/* ---- meshes ---- */

/* Saved on one world and mesh, loaded on others, in any layouts: every element, every dtype. Over the same folder, again and again. */
static void test_checkpoint_meshes(void) {
    static const char *const meshes[] = {"a=1", "a=2", "a=3", "a=2,b=2", "a=3,b=2", "a=2,b=2,c=2", "a=5"};
    static char names[32][300];
    test_random r = random_from(77);
    int i;
    folder_new();
    for (i = 0; i < 30 && !test_failures; i++) {
        state_run run = MESH_ZERO;
        run.mesh = meshes[random_below(&r, 7)];
        run.shapes = random_next(&r), run.layouts = random_next(&r), run.save = i;
        run.file_bytes = i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : 2000;
        run.started = i % 2;
        state_go(i % 5 ? SIM : TCP, &run);
        run.loads = 1, run.layouts = random_next(&r), run.mesh = meshes[random_below(&r, 7)],
        run.unchecked = i % 4 == 3;
        state_go(i % 7 ? SIM : TCP, &run);
        CHECK(folder_list(names) <= 1 + STATE_TENSORS);
    }
    folder_end();
}

/* Save 1 is there: what becomes of save 2 where a call goes wrong? Returns the save that is there then, whole. */
static int64_t state_saved_over(failing_files *plan, const char *says, int *went_wrong) {
    state_run now = MESH_ZERO, check = MESH_ZERO;
    now.mesh = "a=3", now.save = 2, now.file_bytes = 30000;
    now.started = plan->at % 2, now.any = 1, now.status = MESH_ERR_STATE, now.error = says;
    files_plan = plan;
    state_go(SIM, &now);
    files_plan = NULL;
    *went_wrong = now.got != MESH_OK;
    check.mesh = "a=2", check.loads = 1, check.save = 1, check.any = 1;
    state_go(SIM, &check);
    if (now.got) CHECK_INT(strstr(now.told, "the new checkpoint has taken the old one's place") != NULL, check.got_save == 2);
    return check.got_save;
}

static int state_begin(void) {
    static char names[32][300];
    state_run old = MESH_ZERO;
    old.mesh = "a=3", old.save = 1, old.file_bytes = 30000;
    folder_empty();
    state_go(SIM, &old);
    return folder_list(names);
}

/* Whatever call on files is refused: the error says which, on every rank; the old checkpoint is whole, and nothing of the new one is left. */
static void test_checkpoint_refused_files(void) {
    static const struct {
        int kind, error;
        const char *says;
    } kinds[] = {{FILE_OPEN, EACCES, "open /"},     {FILE_WRITE, ENOSPC, "pwrite /"},  {FILE_SYNC, EIO, "fsync /"},
                 {FILE_RENAME, EACCES, "rename /"}, {FILE_SIZE, EFBIG, "ftruncate /"}, {FILE_DIR, EACCES, "dir /"}};
    static char names[32][300];
    size_t k;
    int at, wrong, some;
    folder_new();
    for (k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (at = 1, wrong = 1, some = 0; wrong && !test_failures; at++) {
            failing_files plan = MESH_ZERO;
            int before = state_begin();
            int64_t is;
            plan.kinds = kinds[k].kind, plan.at = at, plan.times = 1, plan.error = kinds[k].error;
            is = state_saved_over(&plan, kinds[k].says, &wrong);
            some += wrong;
            if (is == 1) CHECK(wrong && folder_list(names) == before);
            if (is == 2 && wrong)
                CHECK(kinds[k].kind &
                      (FILE_SYNC | FILE_OPEN)); /* of the folder, after the rename: it is in place, if power stays */
            if (!wrong) CHECK(is == 2 && (plan.calls < at || kinds[k].kind == FILE_DIR));
        }
    CHECK(some);
    folder_end();
}

/* A new folder's own name goes to the disk, before the index has its name in it; the second save has no need of it. */
static void new_folder_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {2};
    failing_files plan = MESH_ZERO;
    char folder[300], says[400];
    float data[2] = {1, 2};
    mesh_named n;
    mesh_comm c;
    mesh_error err;
    int first, told = 0, calls = 0;
    (void)ctx;
    if (!open_comm(t, &c, "x=1", NULL, 60 * SECOND)) return;
    snprintf(folder, sizeof folder, "%s/new", checkpoint_folder);
    snprintf(says, sizeof says, "fsync %s/..: ", folder);
    n.name = "w", n.tensor.data = data;
    CHECK_OK(mesh_tensor_make(&n.tensor, &c.on, "x:R", MESH_F32, 1, shape, &err), err);
    n.tensor.data = data;
    plan.kinds = FILE_SYNC, plan.error = EIO, plan.times = 1;
    files_plan = &plan;
    for (first = 1; first > 0;) { /* each of its fsyncs is refused once */
        mesh_status status;
        plan.at = first++, plan.calls = 0;
        status = mesh_checkpoint_save(&c, folder, &n, 1, NULL);
        if (status && strstr(c.error.text, says)) {
            told++;
            CHECK(access(folder, F_OK));
        }
        if (status == MESH_OK || !access(folder, F_OK)) first = 0; /* its index is there */
        if (!first) CHECK_HAS(c.error.text, "which a loss of power may undo: fsync"); /* the folder's, behind the rename */
    }
    CHECK_INT(told, 1);
    for (first = 0; first < 2; first++) {
        plan.at = 1 << 30, plan.calls = 0;
        CHECK_OK(mesh_checkpoint_save(&c, folder, &n, 1, NULL), c.error);
        if (first) CHECK_INT(plan.calls, calls);
        calls = plan.calls;
    }
    files_plan = NULL;
    mesh_comm_close(&c);
}
static void test_checkpoint_new_folder(void) {
    static const char *const part[] = {"new"};
    folder_new();
    run_world(SIM, 1, new_folder_rank, NULL);
    folder_end_with(part, 1);
}

/* The process is killed at every call in turn, before it and in the middle of what it writes: one of the two checkpoints is there, whole, and the next save
   removes what was left. */
static void test_checkpoint_killed(void) {
    static char names[32][300];
    int at, within, died = 1, olds = 0, news = 0;
    folder_new();
    for (within = 0; within < 2; within++)
        for (at = 1, died = 1; died && !test_failures; at++) {
            failing_files plan = MESH_ZERO;
            state_run check = MESH_ZERO;
            int before = state_begin(), status, wrong;
            pid_t pid;
            plan.kinds = within ? FILE_WRITE : FILE_ANY, plan.at = at, plan.times = 1;
            plan.error = within ? FILE_DIES_WITHIN : FILE_DIES;
            fflush(NULL);
            if ((pid = fork()) == 0) {
                state_saved_over(&plan, "", &wrong);
                _exit(test_failures != 0);
            }
            waitpid(pid, &status, 0);
            died = WIFEXITED(status) && WEXITSTATUS(status) == 9;
            CHECK(died || (WIFEXITED(status) && !WEXITSTATUS(status)));
            check.mesh = "a=2", check.loads = 1, check.save = 1, check.any = 1;
            state_go(SIM, &check);
            olds += check.got_save == 1, news += check.got_save == 2 && died;
            check.loads = 0, check.mesh = "a=3", check.save = 1, check.file_bytes = 30000;
            state_go(SIM, &check);
            CHECK_INT(folder_list(names), before);
        }
    CHECK(olds > 20 && news > 2);
    folder_end();
}

#if defined(LOCK_EX) && !defined(MESH_TEST_SINGLE)
/* Another save is taking its place in the folder: this one goes on when that has, or gives up, and the old checkpoint is whole. */
static void test_checkpoint_locked(void) {
    static char names[32][300];
    int last, wrong;
    folder_new();
    for (last = 0; last < 2; last++) {
        failing_files plan = MESH_ZERO;
        int before = state_begin();
        int64_t is;
        plan.lock = open(checkpoint_folder, O_RDONLY);
        CHECK(plan.lock > 0 && !flock(plan.lock, LOCK_EX));
        plan.naps = last ? MESH__LOCK_NAPS - 1 : MESH__LOCK_NAPS + 1;
        is = state_saved_over(&plan, "another save is taking the checkpoint's place there for 10 s", &wrong);
        CHECK_INT(wrong, !last);
        CHECK_INT(is, 1 + last);
        CHECK_INT(plan.napped, last ? plan.naps : MESH__LOCK_NAPS);
        CHECK_INT(folder_list(names), before);
        if (!last) close(plan.lock);
    }
    folder_end();
}
#endif

/* Calls that move little and are interrupted, and a thread that does not start, change nothing. */
static void test_checkpoint_short(void) {
    int odd;
    folder_new();
    for (odd = 0; odd < 3; odd++) {
        failing_files plan = MESH_ZERO;
        state_run run = MESH_ZERO;
        plan.pieces = 1, plan.kinds = FILE_THREAD, plan.at = 1, plan.times = 1, plan.error = EAGAIN;
        plan.odd = odd; /* each call is interrupted in one of three */
        files_plan = &plan;
        run.mesh = "a=2", run.save = 5, run.started = 1;
        state_go(SIM, &run);
        run.loads = 1, run.mesh = "a=3";
        state_go(SIM, &run);
        files_plan = NULL;
        CHECK(plan.odd > 10);
#ifndef MESH_TEST_SINGLE
        CHECK_INT(plan.calls, 2);
#endif
    }
    folder_end();
}

/* ---- files that are not as they were ---- */

static void file_edit(const char *path, long at, int flip, long length) {
    FILE *f = fopen(path, "r+b");
    int c;
    CHECK(f != NULL);
    if (!f) return;
    if (flip) {
        fseek(f, at, SEEK_SET);
        c = getc(f);
        fseek(f, at, SEEK_SET);
        putc(c ^ flip, f);
    }
    fclose(f);
    if (length >= 0) CHECK(!truncate(path, length));
}
/* A bit of the second byte of a text that it holds. */
static void file_flip(const char *path, const char *text) {
    char all[4000];
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(all, 1, sizeof all - 1, f) : 0;
    const char *at = (all[n] = 0, strstr(all, text));
    if (f) fclose(f);
    CHECK(at != NULL);
    if (at) file_edit(path, (long)(at - all) + 1, 1, -1);
}
static long file_size(const char *path) {
    struct stat s;
    return stat(path, &s) ? -1 : (long)s.st_size;
}
static void load_says(const char *error) {
    state_run r = MESH_ZERO;
    r.mesh = "a=2", r.loads = 1, r.save = 1, r.error = error, r.status = error ? MESH_ERR_ARGUMENT : MESH_OK;
    state_go(SIM, &r);
}

static void test_checkpoint_torn(void) {
    static char names[32][300], aside[400], index[400];
    test_random r = random_from(3);
    const char *data;
    long size, header, i;
    FILE *f;
    folder_new();
    state_begin();
    load_says(NULL);
    data = folder_data();
    size = file_size(data);
    f = fopen(data, "rb");
    header = f ? getc(f) + getc(f) * 256L : 0;
    if (f) fclose(f);
    for (i = 0; i < 60 && !test_failures; i++) { /* cut off, at every length that matters and some others */
        long cut = i < 10    ? i
                   : i == 10 ? 8 + header
                   : i == 11 ? 8 + header - 1
                   : i == 12 ? size - 1
                             : (long)random_below(&r, (int)size);
        state_begin();
        file_edit(data = folder_data(), 0, 0, cut);
        load_says("but the index says");
    }
    for (i = 0; i < 80 && !test_failures; i++) { /* one bit, anywhere: header or data */
        state_begin();
        data = folder_data();
        file_edit(data, i < 8 + header && i < 40 ? i : (long)random_below(&r, (int)size), 1 << random_below(&r, 8), -1);
        load_says("");
    }
    state_begin();
    file_edit(data = folder_data(), size - 1, 1, -1);
    load_says("has changed since it was written: its CRC-32C is");
    state_begin();
    data = folder_data();
    snprintf(aside, sizeof aside, "%s/other.safetensors", checkpoint_folder);
    CHECK(!rename(data, aside));
    load_says("there is no ");
    state_begin();
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", checkpoint_folder);
    size = file_size(index);
    for (i = 0; i < size - 2 && !test_failures; i += 1 + size / 40) { /* the end may lose white space */
        state_begin();
        file_edit(index, 0, 0, i);
        load_says("model.safetensors.index.json: byte ");
        load_says(strrchr(checkpoint_folder, '/') ? strrchr(checkpoint_folder, '/') : checkpoint_folder);
    }
    state_begin(); /* a letter of a key is enough for the index to have no checksums */
    file_flip(index, "\"files\"");
    load_says("which a save put there");
    state_begin();
    file_flip(index, "\"crc32c\"");
    load_says("which a save put there");
    folder_empty();
    load_says("holds no checkpoint: neither model.safetensors.index.json nor model.safetensors");
    CHECK_INT(folder_list(names), 0);
    folder_end();
}

/* ---- by hand ---- */

static void file_write(const char *name, const void *head, size_t nhead, const void *data, size_t n) {
    char path[400];
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", checkpoint_folder, name);
    f = fopen(path, "wb");
    CHECK(f && fwrite(head, 1, nhead, f) == nhead && fwrite(data, 1, n, f) == n);
    if (f) fclose(f);
}
static void file_safe(const char *name, const char *header, const void *data, size_t n) {
    unsigned char head[600] = {0};
    size_t k = strlen(header);
    head[0] = (unsigned char)k, head[1] = (unsigned char)(k >> 8);
    memcpy(head + 8, header, k);
    file_write(name, head, k + 8, data, n);
}

typedef struct hand_case {
    const char *name, *spec, *error;
    int dtype, ndim, partial, convert;
    int64_t rows;
    int turned; /* the part lies by columns, with a gap behind each */
} hand_case;

/* Descriptors of this process, but for the one that looks. */
static int descriptors(void) {
    DIR *d = opendir("/proc/self/fd");
    int n = -1;
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

/* What a folder written by other programs has: one tensor is asked for. */
static void hand_rank(mesh_transport *t, void *ctx) {
    const hand_case *h = (const hand_case *)ctx;
    int64_t shape[2] = {4, 2}, length;
    mesh_checkpoint_desc d = MESH_ZERO;
    mesh_named n;
    mesh_comm c;
    mesh_error err;
    mesh_status status;
    double room[16];
    char text[8];
    int64_t strides[2];
    mesh_box part;
    int i, before;
    if (!open_comm(t, &c, "x=-1", NULL, 30 * SECOND)) return;
    before = descriptors();
    shape[0] = h->rows;
    CHECK_OK(mesh_tensor_make(&n.tensor, &c.on, h->spec, (mesh_dtype)h->dtype, h->ndim, shape, &err), err);
    n.name = h->name;
    n.tensor.data = room;
    if (h->turned && mesh_tensor_box(&n.tensor, t->rank, &part) >= 0) {
        strides[0] = 1, strides[1] = part.shape[0] + 1;
        n.tensor.strides = strides;
    }
    memset(room, 0xee, sizeof room);
    d.partial = h->partial, d.convert = h->convert;
    status = mesh_checkpoint_load(&c, checkpoint_folder, &n, 1, &d);
    CHECK_INT(status, h->error ? MESH_ERR_ARGUMENT : MESH_OK);
    if (h->error) CHECK_HAS(c.error.text, h->error);
    if (h->error || h->partial) {
        for (i = 0; i < (int)sizeof room; i++) CHECK(((unsigned char *)room)[i] == 0xee);
    } else if (mesh__converts((mesh_dtype)h->dtype)) {
        mesh_box box;
        int64_t count = mesh_tensor_box(&n.tensor, t->rank, &box), e;
        for (e = 0; e < count; e++) {
            int64_t at = h->turned ? e / box.shape[1] + e % box.shape[1] * strides[1] : e;
            CHECK(float_at((mesh_dtype)h->dtype, room, at) == 0.5 * (double)(1 + plan_linear_in(2, shape, &box, e)));
        }
    }
    if (!h->error) {
        CHECK_OK(mesh_checkpoint_text(&c, checkpoint_folder, "who", text, sizeof text, &length), c.error);
        CHECK(length == 3 && !strcmp(text, "me!"));
        memset(text, 0x5a, sizeof text);
        CHECK_OK(mesh_checkpoint_text(&c, checkpoint_folder, "who", text, 3, &length), c.error); /* no room for its end */
        CHECK(length == 3 && !strcmp(text, "me") && text[3] == 0x5a);
    }
    CHECK(!c.failed);
    if (t->size == 1 && before > 0) CHECK_INT(descriptors(), before);
    mesh_comm_close(&c);
}

#define HAND_80 "model.layers.17.a.name.that.is.longer.than.all.that.an.error.has.room.for.in.it."
static void test_checkpoint_hands(void) {
    static const char long_name[] = HAND_80 HAND_80 HAND_80 HAND_80 HAND_80 HAND_80 HAND_80;
    static const hand_case cases[] = {
        {"w", "x:S(0)", NULL, MESH_F32, 2, 0, 0, 4, 0},
        {"w", "x:S(1)", NULL, MESH_F64, 2, 0, 1, 4, 0},
        {"w", "x:R", NULL, MESH_BF16, 2, 0, 1, 4, 0},
        {"w", "x:S(1)", NULL, MESH_F64, 2, 0, 1, 4, 1},
        {"w", "x:S(0)", NULL, MESH_BF16, 2, 0, 1, 4, 1},
        {"w", "x:S(0)", NULL, MESH_F32, 2, 0, 0, 4, 1},
        {"b", "x:R", NULL, MESH_U8, 0, 0, 0, 4, 0},
        {"v", "x:R", NULL, MESH_F32, 2, 1, 0, 4, 0},
        {"v", "x:R", "lacks 1 of 1 tensors: \"v\"; desc.partial", MESH_F32, 2, 0, 0, 4, 0},
        {"w", "x:R", "\"w\" is f32 [4,2] in model.safetensors, and here f64 [4,2]; desc.convert makes", MESH_F64, 2, 0,
         0, 4, 0},
        {"w", "x:R", "\"w\" is f32 [4,2] in model.safetensors, and here f32 [3,2]", MESH_F32, 2, 0, 1, 3, 0},
        {"w", "x:R", "of which no i32 is made", MESH_I32, 2, 0, 1, 4, 0},
        {"q", "x:R", "of a dtype that mesh.h has not", MESH_U8, 0, 0, 0, 4, 0},
        {"__metadata__", "x:R", "which the format keeps for itself", MESH_U8, 0, 0, 0, 4, 0},
        {"", "x:R", "its name is empty", MESH_U8, 0, 0, 0, 4, 0},
        {"\xff", "x:R", "its name is no UTF-8", MESH_U8, 0, 0, 0, 4, 0},
        {"_\xff", "x:R", "its name is no UTF-8", MESH_U8, 0, 0, 0, 4, 0},
        {"w", "x:R", "which safetensors has not; a tensor of u8", MESH_C64, 1, 0, 0, 4, 0},
        {long_name, "x:R", "which safetensors has not; a tensor of u8", MESH_C64, 1, 0, 0, 4, 0},
        {"w", "x:P(sum)", "is partial along \"x\"; redistribute it", MESH_F32, 2, 0, 0, 4, 0}};
    static const char header[] =
        "{\"__metadata__\":{\"who\":\"me!\"},\"w\":{\"dtype\":\"F32\",\"shape\":[4,2],\"data_offsets\":[0,32]},"
        "\"b\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[32,33]},\"q\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[33,34]}}";
    static const struct {
        const char *index, *says;
    } indexes[] = {
        {"{\"metadata\":{\"who\":\"me!\"},\"weight_map\":{\"w\":\"part.safetensors\",\"b\":\"part.safetensors\"}}",
         NULL},
        {"{\"metadata\":{\"who\":\"me!\",\"files\":{\"a/b\":{\"sha\":\"7\"},\"c\":3,\"part.safetensors\":{\"bytes\":\"7\",\"crc32c\":[7]}}},"
         "\"weight_map\":{\"w\":\"part.safetensors\",\"b\":\"part.safetensors\"}}",
         NULL}, /* another's "files" */
        {"{\"weight_map\":{\"w\":\"../part.safetensors\"}}", "the name of a file that is not in the folder"},
        {"{\"weight_map\":{\"w\":\"/etc/passwd\"}}", "the name of a file that is not in the folder"},
        {"{\"weight_map\":{\"w\":\"..\"}}", "the name of a file that is not in the folder"},
        {"{\"weight_map\":{\"w\":\"\"}}", "the name of a file that is not in the folder"},
        {"{\"metadata\":{\"files\":{\"a/b\":{\"bytes\":1}}},\"weight_map\":{}}",
         "the name of a file that is not in the folder"},
        {"{\"metadata\":{\"files\":{\"part.safetensors\":{\"bytes\":7}}},\"weight_map\":{}}", "but the index says 7"},
        {"{\"metadata\":{\"files\":{\"part.safetensors\":{\"crc32c\":7}}},\"weight_map\":{}}", "the index says 7"},
        {"{\"metadata\":{\"files\":{\"part.safetensors\":{\"crc32c\":4294967296}}},\"weight_map\":{}}",
         "a checksum above 32 bits"},
        {"{\"weight_map\":{\"nobody\":\"part.safetensors\"}}",
         "the index says that \"nobody\" is in part.safetensors, which lacks it"},
        {"{\"weight_map\":{\"w\":\"part.safetensors\",\"b\":\"gone\"}}", "there is no "},
        {"{\"metadata\":{}}", "no weight_map"},
        {"{\"weight_map\":{},\"weight_map\":{}}", "a second weight_map"},
        {"{\"weight_map\":{\"w\":\"part.safetensors\",\"b\":\"again.safetensors\"}}",
         "is in part.safetensors and in again.safetensors"},
        {"", "expected an object"}};
    float data[9];
    hand_case first = cases[0];
    size_t i;
    char path[400];
    for (i = 0; i < 8; i++) data[i] = 0.5f * (float)(i + 1);
    if (!mesh__is_little()) mesh__swap(data, data, 8 * sizeof *data, sizeof *data);
    folder_new();
    file_safe("model.safetensors", header, data, 34);
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++)
        run_world(i % 4 ? SIM : TCP, 3, hand_rank, (void *)(uintptr_t)&cases[i]);
    for (i = 0; i + 1 < sizeof cases / sizeof cases[0]; i++) /* the last is whole on one rank */
        run_world(TCP, 1, hand_rank, (void *)(uintptr_t)&cases[i]);
    {
        state_run save = MESH_ZERO;
        save.mesh = "a=2", save.error = "which other readers take before an index; remove it",
        save.status = MESH_ERR_ARGUMENT;
        state_go(SIM, &save);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", checkpoint_folder);
    unlink(path);
    file_safe("part.safetensors", header, data, 34);
    file_safe("again.safetensors", header, data, 34);
    for (i = 0; i < sizeof indexes / sizeof indexes[0]; i++) {
        file_write("model.safetensors.index.json", indexes[i].index, strlen(indexes[i].index), "", 0);
        first.error = indexes[i].says;
        run_world(SIM, 2, hand_rank, &first);
        run_world(TCP, 1, hand_rank, &first);
    }
    folder_end();
}

/* Which names a save's files have, for those of older saves are removed: nobody else's. */
static void test_checkpoint_names(void) {
    static const struct {
        const char *name;
        int number;
        int64_t mark;
    } names[] = {{"model-00001-of-00001-00000010.safetensors", 16, 0}, /* of version 0.1 */
                 {"model-123456789-of-123456789-0000000a.safetensors", 10, 0},
                 {"model-00001-of-00001-00000010-0123456789abcdef.safetensors", 16, 0x0123456789abcdef},
                 {"model-123456789-of-123456789-0000000a-000000000000000b.safetensors", 10, 11},
                 {".mesh-0000000b-0123456789abcdef", 11, 0x0123456789abcdef},
                 {"model-00001-of-00001-00000010-0123456789abcde.safetensors", -1, 0},
                 {"model-00001-of-00001-00000010-.safetensors", -1, 0},
                 {"model-00001-of-00001-00000010-0123456789abcdef.safetensors.bak", -1, 0},
                 {"model-00001-of-00001-00000010-0123456789abcdef-1.safetensors", -1, 0},
                 {".mesh-0000000b-0123456789abcdef.bak", -1, 0},
                 {".mesh-0000000b-0123456789abcde", -1, 0},
                 {".mesh-000000b-0123456789abcdef", -1, 0},
                 {"model-00001-of-00001-00000010.safetensors.bak", -1, 0},
                 {"model-00001-of-00001-00000010.safetensor", -1, 0},
                 {"model-00001-of-00001-0000010.safetensors", -1, 0},
                 {"model-00001-of-00001-000000010.safetensors", -1, 0},
                 {"model-0001-of-00001-00000010.safetensors", -1, 0},
                 {"model-00001-of-0001-00000010.safetensors", -1, 0},
                 {"model-00001-of-00001.safetensors", -1, 0},
                 {"model-00001-or-00001-00000010.safetensors", -1, 0},
                 {"my-model-00001-of-00001-00000010.safetensors", -1, 0},
                 {"model.safetensors", -1, 0}};
    mesh__save s;
    mesh_error err = MESH_ZERO;
    int64_t mark;
    size_t i;
    for (i = 0; i < sizeof names / sizeof names[0]; i++) {
        CHECK_INT(mesh__file_number(names[i].name, &mark), names[i].number);
        if (names[i].number >= 0) CHECK_INT(mark, names[i].mark);
    }
    memset(&s, 0, sizeof s); /* what two saves that began in one moment find */
    s.bundle.p = (char *)calloc(1, 32);
    folder_new();
    s.folder = checkpoint_folder, s.number = 16, s.mark = 0x0123456789abcdee;
    for (i = 0; i < 3; i++) {
        char path[400];
        FILE *f;
        snprintf(path, sizeof path, "%s/%s", checkpoint_folder, names[i].name);
        CHECK((f = fopen(path, "w")) != NULL && !fclose(f));
        CHECK_INT(mesh__files_make(&s, &err), i == 1 ? MESH_OK : MESH_ERR_STATE);
        if (i != 1) CHECK_HAS(err.text, ": another save into this folder, of the same number 16, is under way; save again");
        unlink(path);
    }
    free(s.bundle.p);
    folder_end();
}

/* ---- lists ---- */

typedef struct lists_case {
    int what;
    const char *says;
    mesh_status status;
} lists_case;

/* Two stages with tensors of their own and one that both have; then what one rank gets wrong, which every rank is told. */
static void saved_lists_rank(mesh_transport *t, void *ctx) {
    const lists_case *l = (const lists_case *)ctx;
    static const int64_t shape[2] = {6, 4};
    static const char *const lone[] = {"key", NULL}, *const own[] = {"files", "x", NULL},
                      *const latin[] = {"key", "x", "other", "caf\xe9", NULL};
    mesh_named list[3];
    mesh_checkpoint_desc d = MESH_ZERO;
    mesh_comm c;
    mesh stage;
    mesh_error err;
    mesh_status status;
    float room[3][24];
    char name[700] = "begin", *tail = name + sizeof name - 4;
    int pp, i, n = 2, wrong = t->rank == 3, k;
    memset(name + 5, '-', sizeof name - 9);
    memcpy(tail, "end", 4);
    if (!open_comm(t, &c, "pp=2,dp=2", NULL, 30 * SECOND)) return;
    pp = mesh_coord_of(&c.on, "pp", t->rank);
    CHECK_OK(mesh_fix(&stage, &c.on, "pp", pp, &err), err);
    CHECK_OK(mesh_tensor_make(&list[0].tensor, &stage, "dp:S(1)", MESH_F32, 2, shape, &err), err);
    CHECK_OK(mesh_tensor_make(&list[1].tensor, &c.on, "pp:S(0) dp:R", MESH_F32, 2, shape, &err), err);
    list[0].name = pp ? "stage 1" : "stage 0";
    list[1].name = "both";
    for (i = 0; i < 2; i++) {
        mesh_box box;
        int64_t count = mesh_tensor_box(&list[i].tensor, t->rank, &box), e;
        list[i].tensor.data = room[i];
        for (e = 0; e < count; e++) room[i][e] = (float)(100 * (i ? 9 : pp) + plan_linear_in(2, shape, &box, e));
    }
    list[2] = list[1];
    if (wrong) {
        if (l->what == 1) list[1].tensor.layout.shape[0] = 5;
        if (l->what == 2) list[1].tensor.dtype = MESH_I32;
        if (l->what == 3) CHECK_OK(mesh_layout_set(&list[1].tensor.layout, "dp", mesh_shard(1), &err), err);
        if (l->what == 4) n = 1;
        if (l->what == 5) list[1].name = "nobody";
        if (l->what == 6) n = 3;
        if (l->what == 7) list[1].tensor.data = NULL;
        if (l->what == 10) n = -1;
        if (l->what == 13) list[1].name = name;
        if (l->what == 14) list[1].name = list[2].name = name, n = 3;
    }
    if (l->what == 8 && pp) list[0].name = "stage 0";
    if (l->what == 9 && wrong) d.file_bytes = -1;
    if (l->what == 11) d.text = lone;
    if (l->what == 12) d.text = own;
    if (l->what == 15) d.text = latin;
    status = mesh_checkpoint_save(&c, checkpoint_folder, list, n, &d);
    CHECK_INT(status, l->status);
    if (l->says) CHECK_HAS(c.error.text, l->says);
    if (l->says) CHECK_HAS(c.error.text, "mesh_checkpoint_save: rank ");
    if (l->what == 3 || l->what == 4) CHECK_INT(c.error.rank, 3);
    CHECK(!c.failed);
    for (k = 0; k < 2 && !l->says; k++) { /* each rank asks for what another stage had, in other layouts */
        mesh_named other[2];
        other[0] = list[0], other[1] = list[1];
        other[0].name = pp ? "stage 0" : "stage 1";
        CHECK_OK(mesh_layout_set(&other[0].tensor.layout, "dp", k ? mesh_shard(0) : mesh_replicate(), &err), err);
        memset(room, 0, sizeof room);
        CHECK_OK(mesh_checkpoint_load(&c, checkpoint_folder, other, 2, NULL), c.error);
        for (i = 0; i < 2; i++) {
            mesh_box box;
            int64_t count = mesh_tensor_box(&other[i].tensor, t->rank, &box), e;
            for (e = 0; e < count; e++)
                CHECK(room[i][e] == (float)(100 * (i ? 9 : !pp) + plan_linear_in(2, shape, &box, e)));
        }
    }
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}

static void test_checkpoint_lists(void) {
    static const lists_case cases[] = {
        {0, NULL, MESH_OK},
        {1, "\"both\" is f32 [5,4] here and f32 [6,4] on rank 0, the first of its mesh", MESH_ERR_ARGUMENT},
        {2, "\"both\" is i32 [6,4] here and f32 [6,4] on rank 0, the first of its mesh", MESH_ERR_ARGUMENT},
        {3, "here, and otherwise on rank 0", MESH_ERR_MISMATCH},
        {4, "\"both\" stands in the lists of 3 ranks, but its mesh \"pp=2,dp=2\" has 4: rank 3 has it not", MESH_ERR_ARGUMENT},
        {5, "rank 3: \"nobody\" is not in the list of rank 0, the first of its mesh", MESH_ERR_ARGUMENT},
        {6, "rank 3: \"both\" stands in the list twice", MESH_ERR_ARGUMENT},
        {7, "rank 3: \"both\": its tensor: the data is NULL, but rank 3 holds 12 elements", MESH_ERR_ARGUMENT},
        {8, "two tensors are called \"stage 0\": f32 [6,4] of rank 0's list and f32 [6,4] of rank 2's",
         MESH_ERR_ARGUMENT},
        {9, "rank 3: desc.file_bytes is -1; 0 stands for 4 GiB", MESH_ERR_ARGUMENT},
        {10, "rank 3: the list is NULL, or of fewer than no tensors", MESH_ERR_ARGUMENT},
        {11, "desc.text: key \"key\" has no value", MESH_ERR_ARGUMENT},
        {12, "desc.text: the key \"files\" is the index's own", MESH_ERR_ARGUMENT},
        {13, "---end\" is not in the list of rank 0, the first of its mesh", MESH_ERR_ARGUMENT},
        {14, "rank 3: \"begin---", MESH_ERR_ARGUMENT},
        {15, "desc.text: the key or value at 2 is no UTF-8", MESH_ERR_ARGUMENT}};
    static char names[32][300];
    size_t i;
    folder_new();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        run_world(i % 3 ? SIM : TCP, 4, saved_lists_rank, (void *)(uintptr_t)&cases[i]);
        CHECK_INT(folder_list(names), 2); /* of the first case */
    }
    folder_end();
}

/* A part that is larger than a load's buffer, in long runs and in short ones. */
static void saved_large_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[2] = {2600, 3001};
    static const char *const specs[] = {"x:S(1)", "x:R", "x:S(0)"};
    mesh_named n;
    mesh_comm c;
    mesh_error err;
    int i;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 30 * SECOND)) return;
    n.name = "large";
    for (i = 0; i < 3; i++) {
        mesh_box box;
        int64_t count, e, wrong = 0;
        unsigned char *p;
        CHECK_OK(mesh_tensor_make(&n.tensor, &c.on, specs[i], MESH_U8, 2, shape, &err), err);
        count = mesh_tensor_box(&n.tensor, t->rank, &box);
        n.tensor.data = p = (unsigned char *)calloc((size_t)count + 1, 1);
        for (e = 0; e < count && !i; e++) p[e] = state_byte(3, 0, plan_linear_in(2, shape, &box, e), 0);
        CHECK_OK(i ? mesh_checkpoint_load(&c, checkpoint_folder, &n, 1, NULL)
                   : mesh_checkpoint_save(&c, checkpoint_folder, &n, 1, NULL),
                 c.error);
        for (e = 0; e < count; e++) wrong += p[e] != state_byte(3, 0, plan_linear_in(2, shape, &box, e), 0);
        CHECK_INT(wrong, 0);
        free(p);
    }
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_checkpoint_large(void) {
    folder_new();
    run_world(SIM, 2, saved_large_rank, NULL);
    folder_end();
}

/* ---- memory that is not there ---- */

static struct { volatile int on, at, calls, live; } saved_memory;
static void *saved_alloc(void *ctx, size_t n) {
    (void)ctx;
    if (saved_memory.on && __sync_add_and_fetch(&saved_memory.calls, 1) == saved_memory.at) return NULL;
    __sync_add_and_fetch(&saved_memory.live, 1);
    return malloc(n + 1);
}
static void saved_free(void *ctx, void *p) {
    (void)ctx;
    __sync_sub_and_fetch(&saved_memory.live, 1);
    free(p);
}

static void saved_memory_rank(mesh_transport *t, void *ctx) {
    int loads = *(const int *)ctx;
    state_shape shapes[STATE_TENSORS];
    state_part p;
    mesh_comm c;
    mesh_status status;
    if (!open_comm(t, &c, "a=2", NULL, 30 * SECOND)) return;
    state_shapes(shapes, 0);
    state_open(&p, shapes, &c.on, t->rank, 0, loads ? -1 : 2);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    saved_memory.on = 1;
    status = loads ? mesh_checkpoint_load(&c, checkpoint_folder, p.list, p.n, NULL)
                   : mesh_checkpoint_save(&c, checkpoint_folder, p.list, p.n, NULL);
    if (status) CHECK_INT(status, MESH_ERR_MEMORY);
    if (status) CHECK_HAS(c.error.text, "memory");
    if (loads && status && !c.failed) CHECK(state_is(&p, t->rank, -1));
    state_close(&p);
    mesh_comm_close(&c);
}

/* Wherever memory is refused, every rank hears of it or none, nothing is lost, no mark is left, and all is given back. */
static void test_checkpoint_memory(void) {
    static char names[32][300];
    int loads, at, n, refused = 0;
    folder_new();
    for (loads = 0; loads < 2; loads++)
        for (at = 1; (at == 1 || saved_memory.calls >= at - 1) && !test_failures; at++) {
            mesh_sim_desc d = sim_desc(2);
            mesh_error err;
            state_run check = MESH_ZERO;
            state_begin();
            memset((void *)&saved_memory, 0, sizeof saved_memory);
            saved_memory.at = at;
            d.allocator.alloc = saved_alloc;
            d.allocator.free = saved_free;
            CHECK_OK(mesh_sim_run(&d, saved_memory_rank, &loads, &err), err);
            CHECK_INT(saved_memory.live, 0);
            for (n = folder_list(names); n > 0;) CHECK(!strstr(names[--n], ".mesh-"));
            refused += saved_memory.calls >= at;
            check.mesh = "a=2", check.loads = 1, check.save = 1, check.any = 1;
            state_go(SIM, &check);
        }
    CHECK(refused > 30);
    folder_end();
}

/* A limit on the sizes of files (ulimit -f): told, and nobody is ended by its signal; without it the next save is made. */
static void limited_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {300000};
    struct rlimit limit;
    mesh_comm c;
    mesh_named x;
    sigset_t pending;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    memset(&x, 0, sizeof x);
    x.name = "x";
    CHECK_OK(mesh_tensor_make(&x.tensor, &c.on, "x:S(0)", MESH_F32, 1, shape, &c.error), c.error);
    x.tensor.data = calloc(300000, 4);
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 200000;
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_INT(mesh_checkpoint_save(&c, checkpoint_folder, &x, 1, NULL), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "File too large");
    CHECK(!sigpending(&pending) && !sigismember(&pending, SIGXFSZ));
    limit.rlim_cur = limit.rlim_max;
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_OK(mesh_checkpoint_save(&c, checkpoint_folder, &x, 1, NULL), c.error);
    free(x.tensor.data);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_checkpoint_limited(void) {
    folder_new();
    run_world(UNIX, 2, limited_rank, NULL);
    folder_end();
}

static const test_case checkpoint_tests[] = {
    {"checkpoint/crc", test_checkpoint_crc, 0},         {"checkpoint/header", test_checkpoint_header, 0},
    {"checkpoint/hostile", test_checkpoint_hostile, 0}, {"checkpoint/strings", test_checkpoint_strings, 0},
    {"checkpoint/meshes", test_checkpoint_meshes, 0},   {"checkpoint/refused_files", test_checkpoint_refused_files, 0},
    {"checkpoint/killed", test_checkpoint_killed, 0},   {"checkpoint/short", test_checkpoint_short, 0},
    {"checkpoint/torn", test_checkpoint_torn, 0},       {"checkpoint/names", test_checkpoint_names, 0},
    {"checkpoint/hands", test_checkpoint_hands, 0},
    {"checkpoint/lists", test_checkpoint_lists, 0},
    {"checkpoint/large", test_checkpoint_large, 0},     {"checkpoint/memory", test_checkpoint_memory, 0},
    {"checkpoint/many_files", test_checkpoint_many_files, 0},
    {"checkpoint/long_path", test_checkpoint_long_path, 0},
#if defined(LOCK_EX) && !defined(MESH_TEST_SINGLE)
    {"checkpoint/locked", test_checkpoint_locked, 0},
#endif
    {"checkpoint/new_folder", test_checkpoint_new_folder, 0},
    {"checkpoint/limited", test_checkpoint_limited, 0},
};
#endif
