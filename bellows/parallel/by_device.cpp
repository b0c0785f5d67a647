#include "bellows/parallel/by_device.h"

#include <utility>

namespace bellows::parallel {
namespace {

class ByDevice : public Transport {
 public:
  ByDevice(std::unique_ptr<Transport> host, std::unique_ptr<Transport> device)
      : host_(std::move(host)), device_(std::move(device)) {}

  void broadcast(const at::Tensor& tensor, int64_t root, Done done) override {
    of(tensor).broadcast(tensor, root, std::move(done));
  }
  void all_reduce(const at::Tensor& tensor, ReduceOp op, Done done) override {
    of(tensor).all_reduce(tensor, op, std::move(done));
  }
  void reduce(const at::Tensor& tensor, int64_t root, ReduceOp op, Done done) override {
    of(tensor).reduce(tensor, root, op, std::move(done));
  }
  void all_gather(const Tensors& outputs, const at::Tensor& input, Done done) override {
    of(input).all_gather(outputs, input, std::move(done));
  }
  void gather(const Tensors& outputs, const at::Tensor& input, int64_t root, Done done) override {
    of(input).gather(outputs, input, root, std::move(done));
  }
  void scatter(const at::Tensor& output, const Tensors& inputs, int64_t root, Done done) override {
    of(output).scatter(output, inputs, root, std::move(done));
  }
  void all_to_all(const at::Tensor& output, const at::Tensor& input,
                  const std::vector<int64_t>& output_splits,
                  const std::vector<int64_t>& input_splits, Done done) override {
    of(input).all_to_all(output, input, output_splits, input_splits, std::move(done));
  }
  void barrier(Done done) override { host_->barrier(std::move(done)); }
  std::shared_ptr<Message> send(const at::Tensor& tensor, int64_t to, int tag) override {
    return of(tensor).send(tensor, to, tag);
  }
  std::shared_ptr<Message> receive(const at::Tensor& tensor, int64_t from, int tag) override {
    return of(tensor).receive(tensor, from, tag);
  }
  bool takes(c10::Device device) const override {
    return device_->takes(device) || host_->takes(device);
  }
  void abort() override {
    device_->abort();
    host_->abort();
  }

 private:
  Transport& of(const at::Tensor& tensor) const {
    return device_->takes(tensor.device()) ? *device_ : *host_;
  }

  std::unique_ptr<Transport> host_, device_;
};

}  // namespace

std::unique_ptr<Transport> transport_by_device(std::unique_ptr<Transport> host,
                                               std::unique_ptr<Transport> device) {
  return std::make_unique<ByDevice>(std::move(host), std::move(device));
}

}  // namespace bellows::parallel
