/* check_headers.c: prints every constant, size and offset of include/ that mesh.h may rely on. build.sh compiles it
 * against NVIDIA's headers and against ours and compares what they print; with NVIDIA's, our prototypes are declared
 * after theirs, so that one that differs does not compile. */
#include <nccl.h>
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#ifdef FAKE_PROTOTYPES_ONLY
#include "include/nccl.h"
#include "include/cuda_runtime_api.h"
#ifndef FAKE_CUDA_RUNTIME_API_H
#error "our prototypes were not seen"
#endif
#endif

/* clang-format off */
#define VALUES(X)                                                                                                     \
    X(CUDART_VERSION) X(cudaSuccess) X(cudaErrorInvalidValue) X(cudaErrorMemoryAllocation)                            \
    X(cudaErrorInitializationError) X(cudaErrorInvalidConfiguration) X(cudaErrorInvalidPitchValue)                    \
    X(cudaErrorInsufficientDriver) X(cudaErrorInvalidDeviceFunction) X(cudaErrorNoDevice) X(cudaErrorInvalidDevice)   \
    X(cudaErrorInvalidKernelImage) X(cudaErrorNoKernelImageForDevice) X(cudaErrorInvalidPtx)                          \
    X(cudaErrorInvalidResourceHandle) X(cudaErrorIllegalState) X(cudaErrorSymbolNotFound) X(cudaErrorNotReady)        \
    X(cudaErrorIllegalAddress) X(cudaErrorLaunchFailure) X(cudaErrorNotSupported) X(cudaErrorStreamCaptureUnsupported)\
    X(cudaErrorStreamCaptureInvalidated) X(cudaErrorStreamCaptureMerge) X(cudaErrorStreamCaptureUnmatched)            \
    X(cudaErrorStreamCaptureUnjoined) X(cudaErrorStreamCaptureIsolation) X(cudaErrorStreamCaptureImplicit)            \
    X(cudaErrorCapturedEvent) X(cudaErrorStreamCaptureWrongThread) X(cudaErrorUnknown) X(cudaMemcpyHostToHost)        \
    X(cudaMemcpyHostToDevice) X(cudaMemcpyDeviceToHost) X(cudaMemcpyDeviceToDevice) X(cudaMemcpyDefault)              \
    X(cudaMemoryTypeUnregistered) X(cudaMemoryTypeHost) X(cudaMemoryTypeDevice) X(cudaMemoryTypeManaged)              \
    X(cudaDevAttrMultiProcessorCount) X(cudaDevAttrComputeCapabilityMajor) X(cudaDevAttrComputeCapabilityMinor)       \
    X(cudaStreamCaptureStatusNone) X(cudaStreamCaptureStatusActive) X(cudaStreamCaptureStatusInvalidated)             \
    X(cudaStreamCaptureModeGlobal) X(cudaStreamCaptureModeThreadLocal) X(cudaStreamCaptureModeRelaxed)                \
    X(cudaJitMaxRegisters) X(cudaLibraryHostUniversalFunctionAndDataTable) X(cudaStreamDefault)                       \
    X(cudaStreamNonBlocking) X(cudaEventDefault) X(cudaEventBlockingSync) X(cudaEventDisableTiming)                   \
    X(cudaHostAllocDefault) X(cudaHostAllocPortable) X(cudaHostAllocMapped) X(NCCL_MAJOR) X(NCCL_MINOR) X(NCCL_PATCH) \
    X(NCCL_VERSION_CODE) X(NCCL_VERSION(2, 18, 1)) X(NCCL_VERSION(2, 8, 4)) X(NCCL_UNIQUE_ID_BYTES)                   \
    X(NCCL_CONFIG_UNDEF_INT) X(NCCL_SPLIT_NOCOLOR) X(NCCL_SHRINK_DEFAULT) X(NCCL_SHRINK_ABORT) X(NCCL_REVOKE_DEFAULT) \
    X(NCCL_WIN_DEFAULT) X(NCCL_WIN_COLL_SYMMETRIC) X(NCCL_WIN_REQUIRED_ALIGNMENT) X(sizeof(ncclWindow_t))             \
    X(ncclSuccess) X(ncclUnhandledCudaError) X(ncclSystemError) X(ncclInternalError) X(ncclInvalidArgument)           \
    X(ncclInvalidUsage) X(ncclRemoteError) X(ncclInProgress) X(ncclNumResults) X(ncclSum) X(ncclProd) X(ncclMax)      \
    X(ncclMin) X(ncclAvg) X(ncclNumOps) X(ncclMaxRedOp) X(ncclInt8) X(ncclChar) X(ncclUint8) X(ncclInt32) X(ncclInt)  \
    X(ncclUint32) X(ncclInt64) X(ncclUint64) X(ncclFloat16) X(ncclHalf) X(ncclFloat32) X(ncclFloat) X(ncclFloat64)    \
    X(ncclDouble) X(ncclBfloat16) X(ncclFloat8e4m3) X(ncclFloat8e5m2) X(ncclNumTypes) X(sizeof(ncclUniqueId))         \
    X(sizeof(ncclConfig_t)) X(sizeof(ncclSimInfo_t)) X(sizeof(dim3)) X(sizeof(struct cudaPointerAttributes))          \
    X(sizeof(ncclResult_t)) X(sizeof(ncclDataType_t)) X(sizeof(ncclRedOp_t)) X(sizeof(cudaError_t))                   \
    X(sizeof(enum cudaMemcpyKind)) X(offsetof(ncclConfig_t, magic)) X(offsetof(ncclConfig_t, version))                \
    X(offsetof(ncclConfig_t, blocking)) X(offsetof(ncclConfig_t, cgaClusterSize)) X(offsetof(ncclConfig_t, minCTAs))  \
    X(offsetof(ncclConfig_t, maxCTAs)) X(offsetof(ncclConfig_t, netName)) X(offsetof(ncclConfig_t, splitShare))       \
    X(offsetof(ncclConfig_t, trafficClass)) X(offsetof(ncclConfig_t, commName))                                       \
    X(offsetof(ncclConfig_t, collnetEnable)) X(offsetof(ncclConfig_t, CTAPolicy))                                     \
    X(offsetof(ncclConfig_t, shrinkShare)) X(offsetof(ncclConfig_t, nvlsCTAs))                                        \
    X(offsetof(ncclConfig_t, nChannelsPerNetPeer)) X(offsetof(ncclConfig_t, nvlinkCentricSched))                      \
    X(offsetof(struct cudaPointerAttributes, type)) X(offsetof(struct cudaPointerAttributes, device))                 \
    X(offsetof(struct cudaPointerAttributes, devicePointer)) X(offsetof(struct cudaPointerAttributes, hostPointer))   \
    X(offsetof(dim3, y)) X(offsetof(dim3, z))
/* clang-format on */

int main(void) {
    ncclConfig_t config, initial = NCCL_CONFIG_INITIALIZER;
    const unsigned char *bytes = (const unsigned char *)&config;
    memset(&config, 0, sizeof config); /* the padding is not part of the value */
    config.size = initial.size, config.magic = initial.magic, config.version = initial.version;
    config.blocking = initial.blocking, config.cgaClusterSize = initial.cgaClusterSize;
    config.minCTAs = initial.minCTAs, config.maxCTAs = initial.maxCTAs, config.netName = initial.netName;
    config.splitShare = initial.splitShare, config.trafficClass = initial.trafficClass;
    config.commName = initial.commName, config.collnetEnable = initial.collnetEnable;
    config.CTAPolicy = initial.CTAPolicy, config.shrinkShare = initial.shrinkShare;
    config.nvlsCTAs = initial.nvlsCTAs, config.nChannelsPerNetPeer = initial.nChannelsPerNetPeer;
    config.nvlinkCentricSched = initial.nvlinkCentricSched;
#define SHOW(value) printf("%s %lld\n", #value, (long long)(value));
    VALUES(SHOW)
    for (size_t i = 0; i < sizeof config; i++) printf("%02x", bytes[i]);
    printf("\n");
    return 0;
}
