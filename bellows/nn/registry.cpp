#include "bellows/nn/registry.h"

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/nn/builtin.h"

namespace bellows::nn {

void Registry::add(const std::string& name, Factory factory, std::string description) {
  if (name.empty() || !factory)
    throw ValueError(concat("Registry::add: got ",
                            name.empty() ? "an empty name" : "an empty factory",
                            ", expected a name and a function that builds the model."));
  if (entries_.contains(name))
    throw ValueError(
        concat("Registry::add: the model ", name, " is there already. Take another name."));
  entries_.emplace(name, Entry{std::move(factory), std::move(description)});
}

Model Registry::make(const std::string& name, Options& options) const {
  return entry(name).factory(options);
}

std::vector<std::string> Registry::names() const {
  std::vector<std::string> out;
  for (const auto& [name, entry] : entries_) out.push_back(name);
  return out;
}

const std::string& Registry::description(const std::string& name) const {
  return entry(name).description;
}

const Registry::Entry& Registry::entry(const std::string& name) const {
  if (const auto found = entries_.find(name); found != entries_.end()) return found->second;
  const std::vector<std::string> known = names();
  const std::string near = nearest(name, known);
  throw ValueError(concat("There is no model \"", name, "\", expected one of: ", join(known), ".",
                          near.empty() ? "" : concat(" Did you mean ", near, "?")));
}

Registry builtin_models() {
  Registry registry;
  registry.add("mlp", mlp_from_options,
               "Linear layers with ReLU between them: in_features, hidden, classes");
  registry.add("convnet", convnet_from_options,
               "3x3 convolutions, each with pooling and batch norm, for small images: in_channels, "
               "channels, classes, channels_last");
  registry.add("resnet18", resnet18_from_options,
               "ResNet-18 as in torchvision: in_channels, classes, channels_last");
  registry.add("lstm", lstm_from_options,
               "LSTM over sequences or the rows of images, classified at the last step: "
               "in_features, hidden, layers, dropout, bidirectional, classes");
  registry.add("transformer", transformer_from_options,
               "Transformer encoder over sequences or the rows of images, classified by the mean: "
               "in_features, width, heads, layers, feedforward, dropout, norm_first, activation, "
               "max_tokens, classes");
  return registry;
}

}  // namespace bellows::nn
