// A device that is the processor under another name and, as CUDA does, refuses an operation on tensors of both.
// For the tests of this folder on a machine without an accelerator. What torch has no general route for
// (convolutions) it does not have. Its memory is that of the processor.
#include <torch/extension.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <cstring>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

namespace {

constexpr auto kind = c10::DeviceType::PrivateUse1;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kind; }
  c10::Device exchangeDevice(c10::Device) const override { return {kind, 0}; }
  c10::Device getDevice() const override { return {kind, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return s; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Memory final : at::Allocator {
  at::DataPtr allocate(size_t n) override {
    void* p = n ? std::malloc(n) : nullptr;
    return {p, p, &std::free, c10::Device(kind, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* a, const void* b, std::size_t n) const override { std::memcpy(a, b, n); }
};
Memory memory;
REGISTER_ALLOCATOR(kind, &memory);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static at::Generator g = at::detail::getDefaultCPUGenerator();
    return g;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t n) const override {
    auto grown = memory.allocate(n);
    std::memcpy(grown.get(), storage.data(), std::min(n, storage.nbytes()));
    storage.set_data_ptr(std::move(grown));
    storage.set_nbytes(n);
  }
};

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}
at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}
at::Tensor on_cpu(const at::Tensor& x) {
  if (x.device().is_cpu()) return x;
  auto* data = const_cast<void*>(x.const_data_ptr());
  return at::from_blob(data, x.sizes(), x.strides(), x.options().device(at::kCPU));
}
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool) {
  on_cpu(dst).copy_(on_cpu(self));
  return dst;
}
at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  if (dst.sizes() != self.sizes()) dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}
at::Scalar scalar(const at::Tensor& x) { return on_cpu(x).item(); }

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto n = schema.arguments().size();
  bool device = false, processor = false;
  auto look = [&](const at::Tensor& t) {
    if (!t.defined()) return;
    if (t.device().type() == kind) device = true;
    else if (t.dim() > 0) processor = true;
  };
  const auto& name = schema.name();
  const bool indexed = name.find("index") != std::string::npos;  // CUDA takes indices of the processor
  for (size_t i = 0; i < n; ++i) {
    const auto& v = torch::jit::peek(*stack, i, n);
    if (v.isTensor()) look(v.toTensor());
    else if (v.isTensorList() && !indexed) for (const at::Tensor& t : v.toTensorVector()) look(t);
  }
  TORCH_CHECK(!(device && processor), "Expected all tensors to be on the same device, in ", name);
  at::native::cpu_fallback(op, stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &scalar);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("resize_", [](const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat>) -> const at::Tensor& {
    if (self.sizes() == size) return self;
    auto* impl = self.unsafeGetTensorImpl();
    impl->set_sizes_contiguous(size);
    size_t bytes = impl->numel() * self.itemsize();
    if (self.storage().nbytes() < bytes) at::native::resize_bytes_nocuda(self.storage(), bytes);
    return self;
  });
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
}
