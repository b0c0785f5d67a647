// A library that gives one symbol of a chosen name.
extern "C" int fake_symbol() asm(FAKE_SYMBOL);
extern "C" int fake_symbol() {
  return 0;
}
