// One instruction on given data, described in global memory: documented.py writes the descriptions, a kernel runs them
// one after the other. So a program that is compiled once tries hundreds of examples.
#pragma once

#include "kernel_operator.h"

enum Type : int32_t { kHalf, kBfloat, kFloat, kInt8, kUint8, kInt16, kUint16, kInt32, kUint32, kInt64, kUint64, kInt4 };
enum Form : int32_t { kCount, kMask, kBits };

// 32 words of 4 bytes each, in this order.
struct Job {
    int32_t op, from, to, saturate;
    int32_t form, lanes, repeats, mode;
    int32_t dstBlock, aBlock, bBlock, dstRepeat, aRepeat, bRepeat;
    uint32_t low[2], high[2];
    uint32_t scalar[2];
    uint32_t aAt, aBytes, bAt, bBytes, outAt, outBytes;  // of the data, in bytes
    uint32_t extra[6];
};
constexpr uint32_t kWords = sizeof(Job) / sizeof(int32_t);
constexpr uint32_t kRoom = 40 * 1024;

// The operands of the job in hand, in the unified buffer.
class Bench {
public:
    __aicore__ inline Bench(GM_ADDR jobs, GM_ADDR data)
        : a_(AscendC::TPosition::VECIN, 0, kRoom), b_(AscendC::TPosition::VECIN, kRoom, kRoom),
          out_(AscendC::TPosition::VECOUT, 2 * kRoom, kRoom), scratch_(AscendC::TPosition::VECCALC, 3 * kRoom, kRoom)
    {
        jobs_.SetGlobalBuffer((__gm__ int32_t *)jobs);
        data_.SetGlobalBuffer((__gm__ uint8_t *)data);
    }
    __aicore__ inline void Open(uint32_t number)
    {
        int32_t words[kWords];
        for (uint32_t i = 0; i < kWords; ++i) words[i] = jobs_.GetValue(number * kWords + i);
        job = *reinterpret_cast<Job *>(words);
        mask[0] = static_cast<uint64_t>(job.low[1]) << 32 | job.low[0];
        mask[1] = static_cast<uint64_t>(job.high[1]) << 32 | job.high[0];
        if (job.aBytes) AscendC::DataCopy(a_, data_[job.aAt], job.aBytes);
        if (job.bBytes) AscendC::DataCopy(b_, data_[job.bAt], job.bBytes);
        if (job.outBytes) AscendC::DataCopy(out_, data_[job.outAt], job.outBytes);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID0);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID0);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_S>(EVENT_ID0);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(EVENT_ID0);
        AscendC::SetSaturationFlag<AscendC::SaturationMode::FLOAT>(job.saturate != 0);
        AscendC::SetSaturationFlag<AscendC::SaturationMode::INT>(job.saturate != 0);
    }
    __aicore__ inline void Close()
    {
        AscendC::SetSaturationFlag<AscendC::SaturationMode::FLOAT>(false);
        AscendC::SetSaturationFlag<AscendC::SaturationMode::INT>(false);
        AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID0);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID0);
        AscendC::SetFlag<AscendC::HardEvent::S_MTE3>(EVENT_ID0);
        AscendC::WaitFlag<AscendC::HardEvent::S_MTE3>(EVENT_ID0);
        if (job.outBytes) AscendC::DataCopy(data_[job.outAt], out_, job.outBytes);
        AscendC::PipeBarrier<PIPE_ALL>();
    }
    template <class T> __aicore__ inline AscendC::LocalTensor<T> A() { return a_.ReinterpretCast<T>(); }
    template <class T> __aicore__ inline AscendC::LocalTensor<T> B() { return b_.ReinterpretCast<T>(); }
    template <class T> __aicore__ inline AscendC::LocalTensor<T> Out() { return out_.ReinterpretCast<T>(); }
    template <class T> __aicore__ inline AscendC::LocalTensor<T> Scratch() { return scratch_.ReinterpretCast<T>(); }
    // The job's scalar, of type T.
    template <class T> __aicore__ inline T Scalar() const
    {
        return *reinterpret_cast<const T *>(job.scalar);
    }
    __aicore__ inline AscendC::GlobalTensor<uint8_t> Data() { return data_; }
    __aicore__ inline AscendC::UnaryRepeatParams One() const
    {
        return AscendC::UnaryRepeatParams(job.dstBlock, job.aBlock, job.dstRepeat, job.aRepeat);
    }
    __aicore__ inline AscendC::BinaryRepeatParams Two() const
    {
        return AscendC::BinaryRepeatParams(job.dstBlock, job.aBlock, job.bBlock, job.dstRepeat, job.aRepeat, job.bRepeat);
    }
    // Calls f with the end of the argument list that the job's call form has.
    template <class F> __aicore__ inline void Unary(F f)
    {
        if (job.form == kCount) f(static_cast<int32_t>(job.lanes));
        else if (job.form == kMask) f(static_cast<uint64_t>(job.lanes), static_cast<uint8_t>(job.repeats), One());
        else f(mask, static_cast<uint8_t>(job.repeats), One());
    }
    template <class F> __aicore__ inline void Binary(F f)
    {
        if (job.form == kCount) f(static_cast<int32_t>(job.lanes));
        else if (job.form == kMask) f(static_cast<uint64_t>(job.lanes), static_cast<uint8_t>(job.repeats), Two());
        else f(mask, static_cast<uint8_t>(job.repeats), Two());
    }

    Job job;
    uint64_t mask[2];

private:
    AscendC::LocalTensor<uint8_t> a_, b_, out_, scratch_;
    AscendC::GlobalTensor<int32_t> jobs_;
    AscendC::GlobalTensor<uint8_t> data_;
};

template <class F> __aicore__ inline void RunJobs(GM_ADDR jobs, GM_ADDR data, int32_t count, F f)
{
    Bench bench(jobs, data);
    for (int32_t number = AscendC::GetBlockIdx(); number < count; number += AscendC::GetBlockNum()) {
        bench.Open(number);
        f(bench);
        bench.Close();
    }
}
