// What an expected exception says.
#pragma once

#include <exception>
#include <string>

#include <gtest/gtest.h>

namespace bellows::testing {

/// The message of the `Expected` that `fn` throws; another outcome fails the test.
template <class Expected, class Fn>
std::string message_of(Fn fn) {
  try {
    fn();
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another type of exception: " << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no exception";
  return "";
}

}  // namespace bellows::testing
