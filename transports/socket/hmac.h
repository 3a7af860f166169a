/* socket/hmac.h - SHA-256 (FIPS 180-4) and HMAC (RFC 2104). Part of mesh.h 0.1.0. MIT licence.

   Includes mesh/transport.h, for integers and memcpy. Knows no connection.
*/

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SOCKET_HMAC_IMPLEMENTED)
#define MESH_SOCKET_HMAC_IMPLEMENTED
#include "../../mesh/transport.h"

typedef struct mesh_socket__sha {
    uint32_t h[8];
    uint64_t nbytes;
    unsigned char block[64];
} mesh_socket__sha;

MESH__PRIVATE uint32_t mesh_socket__rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

MESH__PRIVATE void mesh_socket__sha_block(mesh_socket__sha *s, const unsigned char *p) {
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64], v[8];
    int i;
    for (i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (; i < 64; i++) {
        uint32_t a = mesh_socket__rotate(w[i - 15], 7) ^ mesh_socket__rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = mesh_socket__rotate(w[i - 2], 17) ^ mesh_socket__rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(v, s->h, sizeof v);
    for (i = 0; i < 64; i++) {
        uint32_t e = mesh_socket__rotate(v[4], 6) ^ mesh_socket__rotate(v[4], 11) ^ mesh_socket__rotate(v[4], 25);
        uint32_t t1 = v[7] + e + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
        uint32_t a = mesh_socket__rotate(v[0], 2) ^ mesh_socket__rotate(v[0], 13) ^ mesh_socket__rotate(v[0], 22);
        uint32_t t2 = a + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (i = 0; i < 8; i++) s->h[i] += v[i];
}

MESH__PRIVATE void mesh_socket__sha_start(mesh_socket__sha *s) {
    static const uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->h, h, sizeof h);
    s->nbytes = 0;
}

MESH__PRIVATE void mesh_socket__sha_add(mesh_socket__sha *s, const void *data, size_t n) {
    const unsigned char *p = (const unsigned char *)data;
    for (; n; n--, p++) {
        s->block[s->nbytes++ % 64] = *p;
        if (s->nbytes % 64 == 0) mesh_socket__sha_block(s, s->block);
    }
}

MESH__PRIVATE void mesh_socket__sha_end(mesh_socket__sha *s, unsigned char *out) {
    uint64_t bits = s->nbytes * 8;
    unsigned char pad = 0x80, length[8];
    int i;
    mesh_socket__sha_add(s, &pad, 1);
    for (pad = 0; s->nbytes % 64 != 56;) mesh_socket__sha_add(s, &pad, 1);
    for (i = 0; i < 8; i++) length[i] = (unsigned char)(bits >> (56 - 8 * i));
    mesh_socket__sha_add(s, length, 8);
    for (i = 0; i < 32; i++) out[i] = (unsigned char)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

/* HMAC over up to three pieces. */
MESH__PRIVATE void mesh_socket__hmac(const void *key, size_t key_bytes, const void *const *piece, const size_t *nbytes,
                                     int pieces, unsigned char *out) {
    unsigned char k[64] = {0}, pad[64];
    mesh_socket__sha s;
    int i;
    if (key_bytes > 64) {
        mesh_socket__sha_start(&s);
        mesh_socket__sha_add(&s, key, key_bytes);
        mesh_socket__sha_end(&s, k);
    } else if (key_bytes) {
        memcpy(k, key, key_bytes);
    }
    for (i = 0; i < 64; i++) pad[i] = k[i] ^ 0x36;
    mesh_socket__sha_start(&s);
    mesh_socket__sha_add(&s, pad, 64);
    for (i = 0; i < pieces; i++) mesh_socket__sha_add(&s, piece[i], nbytes[i]);
    mesh_socket__sha_end(&s, out);
    for (i = 0; i < 64; i++) pad[i] = k[i] ^ 0x5c;
    mesh_socket__sha_start(&s);
    mesh_socket__sha_add(&s, pad, 64);
    mesh_socket__sha_add(&s, out, 32);
    mesh_socket__sha_end(&s, out);
}

/* Equality that takes the same time wherever they differ. */
MESH__PRIVATE int mesh_socket__equal(const unsigned char *a, const unsigned char *b, size_t n) {
    unsigned char differ = 0;
    size_t i;
    for (i = 0; i < n; i++) differ |= a[i] ^ b[i];
    return !differ;
}
#endif /* MESH_SOCKET_HMAC_IMPLEMENTED */
