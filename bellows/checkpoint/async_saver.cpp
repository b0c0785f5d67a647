#include "bellows/checkpoint/async_saver.h"

#include <mutex>

#include "bellows/checkpoint/contents.h"
#include "bellows/checkpoint/host_copy.h"
#include "bellows/core/background_task.h"

namespace bellows::checkpoint {

namespace fs = std::filesystem;

struct AsyncSaver::State {
  std::mutex mutex;
  std::optional<fs::path> last;
  HostCopy copy;
  BackgroundTask background;  // destroyed first: it uses the others
};

AsyncSaver::AsyncSaver() : state_(std::make_unique<State>()) {}
AsyncSaver::~AsyncSaver() = default;

void AsyncSaver::save(const fs::path& root, int64_t step, const nn::Model& model,
                      const Parts& parts, std::function<void(const fs::path&)> after) {
  state_->background.wait();
  Contents contents = gather(step, model, parts);
  state_->copy.take(contents);
  state_->background.start(
      [state = state_.get(), root, step, contents = std::move(contents), after = std::move(after)] {
        const fs::path directory = commit(root, step, contents);
        {
          const std::lock_guard lock(state->mutex);
          state->last = directory;
        }
        if (after) after(directory);
      });
}

void AsyncSaver::wait() {
  state_->background.wait();
}
void AsyncSaver::rethrow() {
  state_->background.rethrow();
}
void AsyncSaver::settle() const {
  state_->background.settle();
}
bool AsyncSaver::busy() const {
  return state_->background.busy();
}

std::optional<fs::path> AsyncSaver::last() const {
  const std::lock_guard lock(state_->mutex);
  return state_->last;
}

}  // namespace bellows::checkpoint
