// Helpers a kernel calls by name: rounding up, type tests, and AscendC::Std, the standard library's part for kernels.
#pragma once

#include <cmath>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "ascendc/types.h"

namespace AscendC {

constexpr uint32_t DivCeil(uint32_t a, uint32_t b) { return (a + b - 1) / b; }
constexpr uint32_t AlignUp(uint32_t a, uint32_t b) { return DivCeil(a, b) * b; }
constexpr uint32_t Ceil(uint32_t a, uint32_t b) { return DivCeil(a, b); }
constexpr int32_t CeilDivision(int32_t a, int32_t b) { return b == 0 ? 0 : (a + b - 1) / b; }

template <bool b>
struct BoolInst {
  using Type = BoolInst<b>;
  static constexpr bool value = b;
};
using TrueType = BoolInst<true>;
using FalseType = BoolInst<false>;

template <bool condition, class T, class U>
struct Conditional {
  using type = std::conditional_t<condition, T, U>;
};
template <class T, class U>
struct IsSameType : BoolInst<std::is_same_v<T, U>> {};

template <class T, class U, class... Others>
constexpr bool SupportType() {
  return (std::is_same_v<T, U> || ... || std::is_same_v<T, Others>);
}
template <class T, int size, int... others>
constexpr bool SupportBytes() {
  return sizeof(T) == size || (... || (sizeof(T) == others));
}

namespace Std {

using std::add_const, std::add_const_t, std::add_cv, std::add_cv_t, std::add_lvalue_reference,
    std::add_lvalue_reference_t, std::add_pointer, std::add_pointer_t, std::add_rvalue_reference,
    std::add_rvalue_reference_t, std::add_volatile, std::add_volatile_t;
using std::bool_constant, std::conditional, std::conditional_t, std::decay, std::decay_t, std::enable_if,
    std::enable_if_t, std::false_type, std::integral_constant, std::true_type;
using std::is_array, std::is_array_v, std::is_base_of, std::is_base_of_v, std::is_class, std::is_class_v, std::is_const,
    std::is_const_v, std::is_convertible, std::is_convertible_v, std::is_function, std::is_function_v, std::is_integral,
    std::is_integral_v, std::is_pointer, std::is_pointer_v, std::is_reference, std::is_reference_v, std::is_same,
    std::is_same_v, std::is_union, std::is_union_v, std::is_void, std::is_void_v;
using std::is_lvalue_reference, std::is_lvalue_reference_v, std::is_rvalue_reference, std::is_rvalue_reference_v;
using std::remove_const, std::remove_const_t, std::remove_cv, std::remove_cv_t, std::remove_extent, std::remove_extent_t,
    std::remove_pointer, std::remove_pointer_t, std::remove_reference, std::remove_reference_t, std::remove_volatile,
    std::remove_volatile_t;
using std::declval, std::forward, std::index_sequence, std::integer_sequence, std::make_index_sequence,
    std::make_integer_sequence, std::move;
using std::forward_as_tuple, std::get, std::ignore, std::make_tuple, std::tie, std::tuple, std::tuple_cat,
    std::tuple_element, std::tuple_element_t, std::tuple_size, std::tuple_size_v;

template <class T>
struct is_floating_point : bool_constant<std::is_floating_point_v<T> || std::is_same_v<std::remove_cv_t<T>, half>> {};
template <class T>
inline constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <class T>
using remove_cvref = std::remove_cv<std::remove_reference_t<T>>;
template <class T>
using remove_cvref_t = typename remove_cvref<T>::type;
template <class T, class... Others>
struct is_one_of : std::disjunction<std::is_same<T, Others>...> {};
template <class T, class... Others>
inline constexpr bool is_one_of_v = is_one_of<T, Others...>::value;
template <class T>
struct is_tuple : std::false_type {};
template <class... Elements>
struct is_tuple<std::tuple<Elements...>> : std::true_type {};
template <class T>
inline constexpr bool is_tuple_v = is_tuple<T>::value;
template <size_t n>
using Int = std::integral_constant<size_t, n>;

template <class T, class U>
constexpr auto max(const T& a, const U& b) {
  return a > b ? a : b;
}
template <class T, class U>
constexpr auto min(const T& a, const U& b) {
  return a < b ? a : b;
}
template <class T, class U>
constexpr auto ceil_division(const T& a, const U& b) {
  return (a + b - 1) / b;
}
template <class T, class U>
constexpr auto ceil_align(const T& a, const U& b) {
  return ceil_division(a, b) * b;
}
template <class T, class U>
constexpr auto divide(const T& a, const U& b) {
  return a / b;
}
template <class T>
inline T sqrt(const T value) {
  return static_cast<T>(std::sqrt(value));
}
template <class T>
inline T abs(const T value) {
  return value < 0 ? -value : value;
}

}  // namespace Std
}  // namespace AscendC
