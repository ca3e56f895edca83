// Messages in the form of a compiler's: file:line: error: what is wrong [rule], the statement, notes and what to change.
#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core.h"

namespace atbfn::emulator {

namespace {

const std::vector<std::string>& Lines(const char* file) {
  static std::mutex mutex;
  static std::map<std::string, std::vector<std::string>> cache;
  std::lock_guard<std::mutex> lock(mutex);
  auto [found, fresh] = cache.try_emplace(file ? file : "");
  if (fresh) {
    std::ifstream in(found->first);
    for (std::string line; std::getline(in, line);) found->second.push_back(line);
  }
  return found->second;
}

std::string Excerpt(Where where) {
  const auto& lines = Lines(where.file);
  if (where.line < 1 || where.line > static_cast<int>(lines.size())) return "";
  return Format("%5d | %s\n", where.line, lines[static_cast<size_t>(where.line) - 1].c_str());
}

std::string Paint(const char* code, const std::string& text) {
  return GlobalOptions().color ? std::string("\x1b[") + code + "m" + text + "\x1b[0m" : text;
}

// The statement that starts at a line: up to its semicolon.
std::string Statement(Where where) {
  const auto& lines = Lines(where.file);
  std::string text;
  for (size_t i = static_cast<size_t>(where.line) - 1; where.line > 0 && i < lines.size() && i < static_cast<size_t>(where.line) + 12; ++i) {
    std::string line = lines[i];
    if (const size_t comment = line.find("//"); comment != std::string::npos) line.resize(comment);
    text += line + " ";
    if (line.find(';') != std::string::npos) break;
  }
  return text;
}

}  // namespace

std::string Format(const char* format, va_list args) {
  va_list copy;
  va_copy(copy, args);
  const int size = std::vsnprintf(nullptr, 0, format, copy);
  va_end(copy);
  std::string text(static_cast<size_t>(size) + 1, '\0');
  std::vsnprintf(text.data(), text.size(), format, args);
  text.pop_back();
  return text;
}

std::string Format(const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::string text = Format(format, args);
  va_end(args);
  return text;
}

std::string Message(const char* severity, Where where, const char* rule, const std::string& text) {
  const bool error = severity[0] == 'e';
  return Paint("1", Format("%s:%d: ", where.file ? where.file : "?", where.line)) +
         Paint(error ? "1;31" : "1;35", std::string(severity) + ":") + " " + text + " [" + rule + "]\n" + Excerpt(where);
}

std::string Note(Where where, const std::string& text) {
  return Paint("1", Format("%s:%d: ", where.file ? where.file : "?", where.line)) + Paint("1;36", "note:") + " " + text +
         "\n" + Excerpt(where);
}

std::string Help(const std::string& text) { return Paint("1;32", "  help:") + " " + text + "\n"; }

// The text between the commas of a call: the first parenthesis after the name that closes at the end of the statement.
const char* ArgumentText(Where where, int index) {
  thread_local std::string result;
  result.clear();
  if (index < 0 || where.line < 1) return "";
  const std::string text = Statement(where);
  // The call is the last top-level parenthesis group of the statement.
  size_t open = std::string::npos;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '(' && depth++ == 0) {
      size_t j = i;
      while (j > 0 && text[j - 1] == ' ') --j;
      size_t k = j;
      while (k > 0 && (isalnum(static_cast<unsigned char>(text[k - 1])) || text[k - 1] == '_')) --k;
      const std::string word = text.substr(k, j - k);
      if (word != "for" && word != "if" && word != "while" && word != "switch") open = i;
    } else if (text[i] == ')') {
      --depth;
    }
  }
  if (open == std::string::npos) return "";
  int argument = 0;
  depth = 0;
  std::string current;
  for (size_t i = open + 1; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '(' || c == '[' || c == '{') ++depth;
    if ((c == ')' && depth == 0) || (c == ',' && depth == 0)) {
      if (argument == index) {
        const size_t first = current.find_first_not_of(" \t"), last = current.find_last_not_of(" \t");
        if (first != std::string::npos) result = current.substr(first, last - first + 1);
        if (result.size() > 60) result.clear();
        return result.c_str();
      }
      if (c == ')') return "";
      ++argument;
      current.clear();
      continue;
    }
    if (c == ')' || c == ']' || c == '}') --depth;
    current += c;
  }
  return "";
}

void Throw(Core* core, std::string text) {
  if (core != nullptr) {
    core->unwinding = true;
    text += Paint("1", "") + Format("   in: kernel %s, core %s (block %d)\n", core->launch->kernel.c_str(),
                                    core->label.c_str(), core->block);
  }
  throw Refusal{std::move(text)};
}

void Refuse(const char* rule, Where where, const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::string text = Format(format, args);
  va_end(args);
  Throw(CurrentOrNull(), Message("error", where, rule, text));
}

void RefuseValue(int64_t value, int bits, bool is_signed, Where where) {
  if (CurrentOrNull() == nullptr) return;  // the host fills a structure that no kernel sees
  const int64_t range = int64_t{1} << bits, low = is_signed ? -range / 2 : 0;
  Refuse("range", where, "%lld is given for a parameter of %d bits, which holds %lld to %lld: the device would take %lld; "
         "use several calls, or cast explicitly where that is meant", static_cast<long long>(value), bits,
         static_cast<long long>(low), static_cast<long long>(low + range - 1),
         static_cast<long long>(((value - low) % range + range) % range + low));
}

void Tolerate(Core& core, const char* rule, Where where, const std::string& text) {
  if (GlobalOptions().strict) Throw(&core, Message("error", where, rule, text));
  const std::array<uint64_t, 4> key = {reinterpret_cast<uint64_t>(where.file), static_cast<uint64_t>(where.line),
                                       reinterpret_cast<uint64_t>(rule), 0};
  if (core.warnings.count(key) == 0) core.warnings[key] = Message("warning", where, rule, text);
}

const char* Name(Pipe pipe) {
  static const char* names[] = {"S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX", "ALL"};
  return names[static_cast<int>(pipe)];
}
const char* Name(Space space) {
  static const char* names[] = {"UB", "L1", "L0A", "L0B", "L0C", "BT", "FB", "GM"};
  return names[static_cast<int>(space)];
}
const char* Name(DType dtype) {
  static const char* names[] = {"half",    "bfloat16_t", "float",    "double",  "int8_t",   "uint8_t", "int16_t",
                                "uint16_t", "int32_t",    "uint32_t", "int64_t", "uint64_t", "int4b_t", "?"};
  return names[static_cast<int>(dtype)];
}

}  // namespace atbfn::emulator
