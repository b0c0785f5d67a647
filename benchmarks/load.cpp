// The floor of B1: loading LibTorch's CPU library, and nothing else.
int main() {
  return 0;
}
