// What the hosts of the cube and mixed programs share: device memory, inputs whose products are exact, references in
// double, and a comparison that says where it failed.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "acl/acl.h"

namespace cube_host {

// The device and one stream, for as long as main runs.
class Session {
public:
    Session()
    {
        Require(aclInit(nullptr));
        Require(aclrtSetDevice(0));
        Require(aclrtCreateStream(&stream_));
    }
    ~Session()
    {
        aclrtDestroyStream(stream_);
        aclrtResetDevice(0);
        aclFinalize();
    }
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;
    aclrtStream Stream() const { return stream_; }
    void Wait() const { Require(aclrtSynchronizeStream(stream_)); }

    static void Require(aclError status)
    {
        if (status != ACL_SUCCESS) {
            std::printf("acl: error %d\n", status);
            std::exit(3);
        }
    }

private:
    aclrtStream stream_ = nullptr;
};

// An array on the device.
template <class T>
class Array {
public:
    explicit Array(size_t count) : count_(count)
    {
        Session::Require(aclrtMalloc(&pointer_, Bytes(), ACL_MEM_MALLOC_HUGE_FIRST));
        Session::Require(aclrtMemset(pointer_, Bytes(), 0, Bytes()));
    }
    explicit Array(const std::vector<T> &values) : count_(values.size())
    {
        Session::Require(aclrtMalloc(&pointer_, Bytes(), ACL_MEM_MALLOC_HUGE_FIRST));
        Session::Require(aclrtMemcpy(pointer_, Bytes(), values.data(), Bytes(), ACL_MEMCPY_HOST_TO_DEVICE));
    }
    ~Array() { aclrtFree(pointer_); }
    Array(const Array &) = delete;
    Array &operator=(const Array &) = delete;
    operator uint8_t *() const { return static_cast<uint8_t *>(pointer_); }
    std::vector<T> Read() const
    {
        std::vector<T> values(count_);
        Session::Require(aclrtMemcpy(values.data(), Bytes(), pointer_, Bytes(), ACL_MEMCPY_DEVICE_TO_HOST));
        return values;
    }

private:
    size_t Bytes() const { return count_ * sizeof(T); }
    size_t count_;
    void *pointer_ = nullptr;
};

// Whole numbers from low to high: their products and sums are exact in float as long as they stay below 2^24.
template <class T>
std::vector<T> Whole(size_t count, int low, int high, uint32_t seed)
{
    std::vector<T> values(count);
    uint32_t state = seed * 2654435761u + 12345u;
    for (auto &value : values) {
        state = state * 1664525u + 1013904223u;
        value = static_cast<T>(static_cast<float>(low + static_cast<int>((state >> 8) % static_cast<uint32_t>(high - low + 1))));
    }
    return values;
}

// Numbers from -scale to scale.
template <class T>
std::vector<T> Uniform(size_t count, float scale, uint32_t seed)
{
    std::vector<T> values(count);
    uint32_t state = seed * 2246822519u + 777u;
    for (auto &value : values) {
        state = state * 1664525u + 1013904223u;
        value = static_cast<T>(scale * (static_cast<float>(state >> 8) / 8388608.0f - 1.0f));
    }
    return values;
}

template <class T>
double Number(T value) { return static_cast<double>(static_cast<float>(value)); }
inline double Number(int32_t value) { return value; }
inline double Number(double value) { return value; }

// [m, k] times [k, n]; with a_turned A is stored as [k, m], with b_turned B as [n, k].
template <class A, class B>
std::vector<double> Product(const std::vector<A> &a, const std::vector<B> &b, size_t m, size_t n, size_t k,
                            bool a_turned = false, bool b_turned = false, size_t a_from = 0, size_t b_from = 0)
{
    std::vector<double> c(m * n, 0.0);
    for (size_t i = 0; i < m; ++i) {
        for (size_t x = 0; x < k; ++x) {
            const double left = Number(a[a_from + (a_turned ? x * m + i : i * k + x)]);
            for (size_t j = 0; j < n; ++j) {
                c[i * n + j] += left * Number(b[b_from + (b_turned ? j * k + x : x * n + j)]);
            }
        }
    }
    return c;
}

// Whether got is want, up to absolute + relative * |want|. Says where it is not.
template <class T, class W>
bool Same(const char *what, const std::vector<T> &got, const std::vector<W> &want, double absolute = 0.0, double relative = 0.0)
{
    if (got.size() != want.size()) {
        std::printf("%s: %zu values instead of %zu\n", what, got.size(), want.size());
        return false;
    }
    size_t wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) {
        const double x = Number(got[i]), y = Number(want[i]);
        if (std::fabs(x - y) <= absolute + relative * std::fabs(y)) {
            continue;
        }
        if (++wrong <= 5) {
            std::printf("%s[%zu] is %.9g instead of %.9g\n", what, i, x, y);
        }
    }
    if (wrong > 0) {
        std::printf("%s: %zu of %zu are wrong\n", what, wrong, got.size());
    }
    return wrong == 0;
}

inline int Finish(bool good)
{
    std::puts(good ? "ok" : "wrong");
    return good ? 0 : 1;
}

}  // namespace cube_host
