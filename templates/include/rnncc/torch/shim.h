// The functions of torch's stable C interface that the binding calls. torch 2.10 has them in
// torch/csrc/inductor/aoti_torch (c/shim.h, generated/c_shim_aten.h) and torch/csrc/stable/c/shim.h, and promises not to
// change them. They are declared here so that a build needs no header of torch's, and one library serves torch 2.10 and
// later.
#pragma once

#include <cstddef>
#include <cstdint>

// The version of the interface that is declared here, in torch's own encoding: 2.10.0.
constexpr uint64_t rnncc_torch_abi = 0x020a000000000000ull;

extern "C" {
// Every function returns 0, or another number after an error. A StableValue holds an int64, a double, a bool, or a
// handle. A boxed kernel owns its arguments, and the caller owns its results. An optional argument is null or points to
// a StableValue on the heap.
typedef uint64_t StableValue;
typedef struct AtenTensorOpaque* TensorHandle;
typedef struct TorchLibraryOpaque* LibraryHandle;
typedef struct StableListOpaque* ListHandle;
typedef struct DeviceGuardOpaque* DeviceGuardHandle;
typedef void (*BoxedKernel)(StableValue* stack, uint64_t arguments, uint64_t results);

int32_t aoti_torch_delete_tensor_object(TensorHandle tensor);
int32_t aoti_torch_get_data_ptr(TensorHandle tensor, void** data);
int32_t aoti_torch_get_dim(TensorHandle tensor, int64_t* dim);
int32_t aoti_torch_get_numel(TensorHandle tensor, int64_t* elements);
int32_t aoti_torch_get_sizes(TensorHandle tensor, int64_t** borrowed_sizes);
int32_t aoti_torch_get_strides(TensorHandle tensor, int64_t** borrowed_strides);
int32_t aoti_torch_get_storage_offset(TensorHandle tensor, int64_t* elements);
int32_t aoti_torch_get_storage_size(TensorHandle tensor, int64_t* bytes);
int32_t aoti_torch_get_dtype(TensorHandle tensor, int32_t* dtype);
int32_t aoti_torch_get_device_type(TensorHandle tensor, int32_t* device_type);
int32_t aoti_torch_get_device_index(TensorHandle tensor, int32_t* device_index);
int32_t aoti_torch_new_tensor_handle(TensorHandle tensor, TensorHandle* result);
int32_t aoti_torch_create_tensor_from_blob(void* data, int64_t dim, const int64_t* sizes, const int64_t* strides,
                                           int64_t storage_offset, int32_t dtype, int32_t device_type,
                                           int32_t device_index, TensorHandle* result);
int32_t aoti_torch_empty_strided(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                 int32_t device_type, int32_t device_index, TensorHandle* result);
int32_t aoti_torch_copy_(TensorHandle self, TensorHandle source, int32_t non_blocking);
int32_t aoti_torch_zero_(TensorHandle self);
int32_t aoti_torch_aten_fill__Scalar(TensorHandle self, double value);
int32_t aoti_torch_aten_subtract_Tensor(TensorHandle self, TensorHandle other, double alpha, TensorHandle* result);
int32_t aoti_torch_device_type_cpu();
int32_t aoti_torch_device_type_cuda();
int32_t aoti_torch_dtype_float32();
int32_t aoti_torch_dtype_float64();
int32_t aoti_torch_dtype_bfloat16();
int32_t aoti_torch_dtype_float16();
int32_t aoti_torch_dtype_uint8();
int32_t aoti_torch_dtype_int64();
int32_t aoti_torch_dtype_bool();
size_t aoti_torch_dtype_element_size(int32_t dtype);

// Calls torch's operation `name`, `overload` with the arguments on the stack, which it takes over; results replace
// them.
int32_t torch_call_dispatcher(const char* name, const char* overload, StableValue* stack, uint64_t abi);
int32_t aoti_torch_create_device_guard(int32_t device_index, DeviceGuardHandle* result);
int32_t aoti_torch_delete_device_guard(DeviceGuardHandle guard);

int32_t torch_new_list_reserve_size(size_t size, ListHandle* result);
int32_t torch_list_size(ListHandle list, size_t* size);
int32_t torch_list_get_item(ListHandle list, size_t index, StableValue* element);
int32_t torch_list_push_back(ListHandle list, StableValue element);
int32_t torch_delete_list(ListHandle list);

int32_t aoti_torch_library_init_def(const char* space, const char* file, uint32_t line, LibraryHandle* result);
int32_t aoti_torch_library_init_fragment(const char* space, const char* file, uint32_t line, LibraryHandle* result);
int32_t aoti_torch_library_init_impl(const char* space, const char* key, const char* file, uint32_t line,
                                     LibraryHandle* result);
int32_t aoti_torch_library_def(LibraryHandle self, const char* schema);
int32_t torch_library_impl(LibraryHandle self, const char* name, BoxedKernel kernel, uint64_t abi);

// torch has this from 2.13 on: the text of this thread's last error. An older torch prints the text to stderr.
__attribute__((weak)) const char* torch_exception_get_what_without_backtrace();
}
