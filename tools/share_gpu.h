/* Several ranks on one GPU, in turns: for correctness only. NCCL refuses that unless it takes each rank for a host; hosts then talk over its
   sockets. (From 2.30 on NCCL_MULTI_RANK_GPU_ENABLE says it too.) */
#ifndef SHARE_GPU_H
#define SHARE_GPU_H

/* In the environment of rank r of a job. What is set already stays, but for NCCL_HOSTID: the same one for all is what NCCL refuses, so each
   rank's number goes behind it. */
static void share_gpu(const char *job, int r) {
    static const char *const recipe[][2] = {{"NCCL_SOCKET_IFNAME", "lo"},
                                            {"NCCL_SOCKET_FAMILY", "AF_INET"},
                                            {"NCCL_NET", "Socket"},
                                            {"NCCL_IB_DISABLE", "1"},
                                            {"NCCL_P2P_DISABLE", "1"},
                                            {"NCCL_SHM_DISABLE", "1"},
                                            {"NCCL_MNNVL_ENABLE", "0"},
                                            {"NCCL_NVLS_ENABLE", "0"},
                                            {"NCCL_COLLNET_ENABLE", "0"},
                                            {"NCCL_RAS_ENABLE", "0"},
                                            {"NCCL_MAX_CTAS", "2"},
                                            {"NCCL_ALGO", "Ring"},
                                            {"NCCL_PROTO", "Simple"},
                                            {"NCCL_NET_GDR_LEVEL", "LOC"},
                                            {"NCCL_MULTI_RANK_GPU_ENABLE", "1"}};
    const char *given = getenv("NCCL_HOSTID");
    char host[256];
    size_t i;
    snprintf(host, sizeof host, "%.200s-%d", given && *given ? given : job, r);
    setenv("NCCL_HOSTID", host, 1);
    for (i = 0; i < sizeof recipe / sizeof recipe[0]; i++) setenv(recipe[i][0], recipe[i][1], 0);
}

#endif
