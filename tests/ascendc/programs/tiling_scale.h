// A kernel in a header of its own, told its shape by a struct.
#pragma once

#include "kernel_operator.h"

struct ScaleTiling {
    uint32_t length;
    uint32_t tile;
    float factor;
};

// The struct comes by value.
__global__ __vector__ void scale_by_value(GM_ADDR x, ScaleTiling tiling)
{
    AscendC::GlobalTensor<float> xGm;
    xGm.SetGlobalBuffer((__gm__ float *)x);
    AscendC::TPipe pipe;
    AscendC::TQueBind<AscendC::TPosition::VECIN, AscendC::TPosition::VECOUT, 1> queue;
    AscendC::TQue<AscendC::TPosition::VECOUT, 1> out;
    AscendC::TQue<AscendC::TPosition::VECIN, 1> in;
    pipe.InitBuffer(in, 2, tiling.tile * sizeof(float));
    pipe.InitBuffer(out, 2, tiling.tile * sizeof(float));
    for (uint32_t at = AscendC::GetBlockIdx() * tiling.tile; at < tiling.length; at += AscendC::GetBlockNum() * tiling.tile) {
        AscendC::LocalTensor<float> a = in.AllocTensor<float>();
        AscendC::DataCopy(a, xGm[at], tiling.tile);
        in.EnQue(a);
        a = in.DeQue<float>();
        AscendC::LocalTensor<float> b = out.AllocTensor<float>();
        AscendC::Muls(b, a, tiling.factor, tiling.tile);
        in.FreeTensor(a);
        out.EnQue(b);
        b = out.DeQue<float>();
        AscendC::DataCopy(xGm[at], b, tiling.tile);
        out.FreeTensor(b);
    }
}
