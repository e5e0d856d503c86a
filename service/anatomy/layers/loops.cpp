// Loops over calls of torch's operators, timed: see `Loops` in variants.py.

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/transpose.h>
#include <torch/library.h>
#include <chrono>
#include <functional>

namespace {
using at::Tensor;
using Tensors = std::vector<Tensor>;
using Clock = std::chrono::steady_clock;

void empty_operator(const Tensor&, const Tensor&) {}

// New memory like `like`; on a CPU each page of it is written once, which may be a page fault.
void allocate(const Tensor& like) {
  if (!like.is_cpu()) {
    at::empty(like.sizes(), like.options());
    return;
  }
  // As operators do for their results on a CPU: not by way of the dispatcher.
  const Tensor made = at::detail::empty_cpu(like.sizes(), like.options());
  auto* bytes = static_cast<volatile char*>(made.data_ptr());
  for (size_t place = 0; place < made.nbytes(); place += 4096) bytes[place] = 0;
}

std::function<void()> call_of(std::string_view name, Tensors t) {
  if (name == "nothing") return [] {};
  if (name == "dispatcher") {
    static const auto handle = c10::Dispatcher::singleton()
        .findSchemaOrThrow("launchbound_layers::empty_operator", "")
        .typed<void(const Tensor&, const Tensor&)>();
    return [=] { handle.call(t[0], t[1]); };
  }
  if (name == "allocate") return [=] { for (const auto& like : t) allocate(like); };
  if (name == "cast") return [=] { for (const auto& each : t) each.to(at::kBFloat16); };
  if (name == "add") return [=] { at::add(t[0], t[1]); };
  if (name == "add_out") return [=]() mutable { at::add_out(t.back(), t[0], t[1]); };
  if (name == "mul") return [=] { at::mul(t[0], t[1]); };
  if (name == "mul_out") return [=]() mutable { at::mul_out(t.back(), t[0], t[1]); };
  if (name == "exp") return [=] { at::exp(t[0]); };
  if (name == "exp_out") return [=]() mutable { at::exp_out(t.back(), t[0]); };
  if (name == "relu") return [=] { at::relu(t[0]); };
  if (name == "sum") return [=] { at::sum(t[0]); };
  if (name == "softmax") return [=] { at::softmax(t[0], -1); };
  if (name == "transpose") return [=] { at::transpose(t[0], 0, 1); };
  if (name == "matmul") return [=] { at::matmul(t[0], t[1]); };
  if (name == "matmul_out") return [=]() mutable { at::matmul_out(t.back(), t[0], t[1]); };
  TORCH_CHECK(name == "layer_norm", "no loop of this name: ", name);
  return [=] { at::layer_norm(t[0], {t[1].size(0)}, t[1], t[2]); };
}

double seconds(Clock::duration spent) { return std::chrono::duration<double>(spent).count(); }

double loop(std::string name, Tensors tensors, int64_t times) {
  const auto call = call_of(name, std::move(tensors));
  const auto began = Clock::now();
  for (int64_t i = 0; i < times; ++i) call();
  return seconds(Clock::now() - began);
}

double loop_after(std::string name, Tensors tensors, std::string before, Tensors others, int64_t times) {
  const auto call = call_of(name, std::move(tensors)), first = call_of(before, std::move(others));
  Clock::duration spent{0};
  for (int64_t i = 0; i < times; ++i) {
    first();
    const auto began = Clock::now();
    call();
    spent += Clock::now() - began;
  }
  return seconds(spent);
}
}

TORCH_LIBRARY(launchbound_layers, m) {
  m.def("empty_operator(Tensor a, Tensor b) -> ()");
  m.impl("empty_operator", c10::DispatchKey::CompositeExplicitAutograd, &empty_operator);
  m.def("loop(str name, Tensor[] tensors, int times) -> float", &loop);
  m.def("loop_after(str name, Tensor[] tensors, str before, Tensor[] others, int times) -> float",
        &loop_after);
}
