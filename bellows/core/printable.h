// Text from files on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace bellows {

/// For text from files that are not trusted: what a terminal would act on, or show in another
/// order, is written as escapes, such as \n, \x1b, \u202e; so is each byte that is not UTF-8.
/// Everything else stays as it is.
std::string printable(std::string_view text);

}  // namespace bellows
