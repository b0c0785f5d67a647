#include <algorithm>
#include <array>
#include <string>

#include "bellows/optim/adadelta.h"
#include "bellows/optim/adafactor.h"
#include "bellows/optim/adagrad.h"
#include "bellows/optim/adam.h"
#include "bellows/optim/adamax.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/asgd.h"
#include "bellows/optim/lamb.h"
#include "bellows/optim/lars.h"
#include "bellows/optim/lion.h"
#include "bellows/optim/muon.h"
#include "bellows/optim/nadam.h"
#include "bellows/optim/radam.h"
#include "bellows/optim/rmsprop.h"
#include "bellows/optim/rprop.h"
#include "bellows/optim/sgd.h"

namespace bellows::optim {
namespace {

template <class T, class O>
std::unique_ptr<Optimizer> made(Options& table, NamedTensors parameters) {
  O options;
  read_options(table, options);
  return std::make_unique<T>(std::move(parameters), std::move(options));
}

struct Entry {
  const char* name;
  std::unique_ptr<Optimizer> (*make)(Options&, NamedTensors);
};

constexpr std::array kEntries{
    Entry{"adadelta", made<Adadelta, AdadeltaOptions>},
    Entry{"adafactor", made<Adafactor, AdafactorOptions>},
    Entry{"adagrad", made<Adagrad, AdagradOptions>},
    Entry{"adam", made<Adam, AdamOptions>},
    Entry{"adamax", made<Adamax, AdamaxOptions>},
    Entry{"adamw", made<AdamW, AdamWOptions>},
    Entry{"asgd", made<ASGD, ASGDOptions>},
    Entry{"lamb", made<LAMB, LAMBOptions>},
    Entry{"lars", made<LARS, LARSOptions>},
    Entry{"lion", made<Lion, LionOptions>},
    Entry{"muon", made<Muon, MuonOptions>},
    Entry{"nadam", made<NAdam, NAdamOptions>},
    Entry{"radam", made<RAdam, RAdamOptions>},
    Entry{"rmsprop", made<RMSprop, RMSpropOptions>},
    Entry{"rprop", made<Rprop, RpropOptions>},
    Entry{"sgd", made<SGD, SGDOptions>},
};

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(Options& options, NamedTensors parameters) {
  const std::string name = lower(options.get<std::string>("name", "adamw"));
  if (name == "lbfgs") {
    options.fail("name",
                 "LBFGS computes the loss several times a step: use optim::LBFGS and its "
                 "step(closure) in a loop of your own");
  }
  const auto* const entry = std::ranges::find(kEntries, name, &Entry::name);
  if (entry != kEntries.end()) return entry->make(options, std::move(parameters));
  std::vector<std::string> names;
  for (const Entry& known : kEntries) names.emplace_back(known.name);
  options.get_one_of("name", "adamw", names);  // throws
  return nullptr;
}

}  // namespace bellows::optim
