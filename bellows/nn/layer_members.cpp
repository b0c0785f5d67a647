#include "bellows/nn/layer_members.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/nn/modules.h>

#include "bellows/core/text.h"

namespace bellows::nn {
namespace {

namespace tnn = torch::nn;

template <class M>
using Fields = std::initializer_list<std::pair<const char*, at::Tensor M::*>>;

class Collector {
 public:
  explicit Collector(tnn::Module& module) : module_(module) {}

  template <class M>
  void add(Fields<M> fields) {
    auto* layer = dynamic_cast<M*>(&module_);
    if (layer == nullptr) return;
    for (const auto& [name, field] : fields) found_.push_back({name, &(layer->*field)});
  }
  template <class... M>
  void add_weighted() {
    (add<M>({{"weight", &M::weight}}), ...);
  }
  template <class... M>
  void add_affine() {
    (add<M>({{"weight", &M::weight}, {"bias", &M::bias}}), ...);
  }
  template <class... M>
  void add_norms() {
    (add<M>({{"weight", &M::weight},
             {"bias", &M::bias},
             {"running_mean", &M::running_mean},
             {"running_var", &M::running_var},
             {"num_batches_tracked", &M::num_batches_tracked}}),
     ...);
  }
  template <class... M>
  void add_cells() {
    (add<M>({{"weight_ih", &M::weight_ih},
             {"weight_hh", &M::weight_hh},
             {"bias_ih", &M::bias_ih},
             {"bias_hh", &M::bias_hh}}),
     ...);
  }

  std::vector<LayerMember> found() && { return std::move(found_); }

 private:
  tnn::Module& module_;
  std::vector<LayerMember> found_;
};

/// A module's tensors by name, and back.
struct Registered {
  explicit Registered(const tnn::Module& module) {
    const auto add = [&](const auto& items) {
      for (const auto& item : items) {
        by_name.emplace(item.key(), item.value());
        names.emplace(item.value().unsafeGetTensorImpl(), item.key());  // the first one stays
      }
    };
    add(module.named_parameters());
    add(module.named_buffers());
  }

  std::unordered_map<std::string, at::Tensor> by_name;
  std::unordered_map<const c10::TensorImpl*, std::string> names;
};

class MemberCopier {
 public:
  MemberCopier(const tnn::Module& original, const tnn::Module& copy)
      : original_(original), copy_(copy) {}

  std::string operator()(const std::string& path, tnn::Module& from, tnn::Module& to) {
    const auto theirs = layer_members(from);
    const auto ours = layer_members(to);
    if (theirs.size() != ours.size()) return concat(path, " has other members");
    for (size_t i = 0; i < ours.size(); ++i) {
      if (!set(*ours[i].tensor, *theirs[i].tensor)) {
        return concat("the member ", theirs[i].name, " of ", path.empty() ? "the module" : path,
                      " is computed from other tensors, or a view of one that is registered");
      }
    }
    return "";
  }

 private:
  bool set(at::Tensor& target, const at::Tensor& value) {
    if (!value.defined()) {
      target = at::Tensor();
      return true;
    }
    if (const auto name = original_.names.find(value.unsafeGetTensorImpl());
        name != original_.names.end()) {
      target = copy_.by_name.at(name->second);
      return true;
    }
    const auto [made, added] = copies_.emplace(value.unsafeGetTensorImpl(), at::Tensor());
    if (added) {
      const auto is_view = [&](const auto& item) { return item.second.is_alias_of(value); };
      if (!value.is_leaf() || std::ranges::any_of(original_.by_name, is_view)) return false;
      made->second = value.detach().clone().set_requires_grad(value.requires_grad());
    }
    target = made->second;
    return true;
  }

  const Registered original_, copy_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> copies_;  // of what is not registered
};

}  // namespace

std::vector<LayerMember> layer_members(tnn::Module& module) {
  Collector all(module);
  all.add_affine<tnn::LinearImpl, tnn::BilinearImpl, tnn::Conv1dImpl, tnn::Conv2dImpl,
                 tnn::Conv3dImpl, tnn::ConvTranspose1dImpl, tnn::ConvTranspose2dImpl,
                 tnn::ConvTranspose3dImpl, tnn::LayerNormImpl, tnn::GroupNormImpl>();
  all.add_norms<tnn::BatchNorm1dImpl, tnn::BatchNorm2dImpl, tnn::BatchNorm3dImpl,
                tnn::InstanceNorm1dImpl, tnn::InstanceNorm2dImpl, tnn::InstanceNorm3dImpl>();
  all.add_weighted<tnn::EmbeddingImpl, tnn::EmbeddingBagImpl, tnn::PReLUImpl,
                   tnn::CrossEntropyLossImpl, tnn::NLLLossImpl>();
  all.add_cells<tnn::RNNCellImpl, tnn::LSTMCellImpl, tnn::GRUCellImpl>();
  using Attention = tnn::MultiheadAttentionImpl;
  all.add<Attention>({{"in_proj_weight", &Attention::in_proj_weight},
                      {"in_proj_bias", &Attention::in_proj_bias},
                      {"bias_k", &Attention::bias_k},
                      {"bias_v", &Attention::bias_v},
                      {"q_proj_weight", &Attention::q_proj_weight},
                      {"k_proj_weight", &Attention::k_proj_weight},
                      {"v_proj_weight", &Attention::v_proj_weight}});
  return std::move(all).found();
}

std::string copy_layer_members(tnn::Module& original, tnn::Module& copy) {
  const at::NoGradGuard no_grad;
  MemberCopier members(original, copy);
  std::string fault = members("", original, copy);
  const auto from = original.named_modules("", /*include_self=*/false);
  const auto to = copy.named_modules("", /*include_self=*/false);
  for (size_t i = 0; fault.empty() && i < from.size(); ++i)
    fault = members(from[i].key(), *from[i].value(), *to[i].value());
  return fault;
}

}  // namespace bellows::nn
