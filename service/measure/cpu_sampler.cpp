// Samples the calling thread by a timer signal: where it is, at random instants. Needs no privilege.
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

namespace {

const int SIGNAL = SIGRTMAX - 3;
const uint64_t IN_SYSTEM = 0;  // stands for every address inside the operating system

struct Sample {
  uint64_t address;
  int64_t label;
};

struct Sampler {
  timer_t timer;
  int64_t mean_ns;
  double left;  // of an interval that was cut short, in means; 0: the next one is drawn anew
  uint64_t random;
  volatile int64_t label;    // what the thread does now; 0: nothing to be sampled
  volatile bool running;
  volatile uint64_t head, tail, lost;
  uint64_t capacity;
  Sample* ring;
};

void arm(Sampler* sampler, double means) {
  int64_t ns = static_cast<int64_t>(means * static_cast<double>(sampler->mean_ns));
  if (ns < 1) ns = 1;
  itimerspec when{};
  when.it_value.tv_sec = ns / 1000000000;
  when.it_value.tv_nsec = ns % 1000000000;
  timer_settime(sampler->timer, 0, &when, nullptr);
}

// 0.5 to 1.5: samples must not keep step with anything. xorshift64*.
double interval(Sampler* sampler) {
  uint64_t x = sampler->random;
  x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
  sampler->random = x;
  return 0.5 + static_cast<double>((x * 2685821657736338717ull) >> 11) * 0x1.0p-53;
}

// A signal that came within a system call is delivered behind its instruction, or at it where the call starts again.
bool in_system(uint64_t pc) {
#if defined(__x86_64__)
  const uint64_t at = pc & 4095;
  const unsigned char* code = reinterpret_cast<const unsigned char*>(pc);
  return (at >= 2 && code[-2] == 0x0f && code[-1] == 0x05) || (at <= 4094 && code[0] == 0x0f && code[1] == 0x05);
#else
  const uint32_t call = 0xd4000001;  // svc #0
  const uint32_t* code = reinterpret_cast<const uint32_t*>(pc);
  return ((pc & 4095) >= 4 && code[-1] == call) || code[0] == call;
#endif
}

void handle(int, siginfo_t* info, void* context) {
  const int error = errno;
  Sampler* sampler = static_cast<Sampler*>(info->si_value.sival_ptr);
  if (sampler->running) {
    if (const int64_t label = sampler->label; label != 0) {
      const mcontext_t& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
      const uint64_t pc = static_cast<uint64_t>(machine.gregs[REG_RIP]);
#elif defined(__aarch64__)
      const uint64_t pc = machine.pc;
#else
#error "the sampler knows the program counters of x86-64 and aarch64"
#endif
      if (sampler->head - sampler->tail < sampler->capacity) {
        sampler->ring[sampler->head % sampler->capacity] = {in_system(pc) ? IN_SYSTEM : pc, label};
        sampler->head = sampler->head + 1;
      } else {
        sampler->lost = sampler->lost + 1;
      }
    }
    arm(sampler, interval(sampler));
  }
  errno = error;
}

}  // namespace

extern "C" {

// For the calling thread; null with errno where there can be none. EBUSY: the signal is somebody else's.
Sampler* sampler_new(uint64_t capacity, uint64_t seed) {
  struct sigaction action {}, before {};
  sigaction(SIGNAL, nullptr, &before);
  if (before.sa_handler != SIG_DFL && before.sa_sigaction != handle) {
    errno = EBUSY;
    return nullptr;
  }
  Sampler* sampler = static_cast<Sampler*>(calloc(1, sizeof(Sampler)));
  Sample* ring = static_cast<Sample*>(calloc(capacity, sizeof(Sample)));
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = SIGNAL;
  event.sigev_value.sival_ptr = sampler;
  event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
  if (sampler == nullptr || ring == nullptr || timer_create(CLOCK_MONOTONIC, &event, &sampler->timer) != 0) {
    const int error = errno;
    free(sampler), free(ring);
    errno = error;
    return nullptr;
  }
  sampler->ring = ring, sampler->capacity = capacity, sampler->random = seed | 1;
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  sigaction(SIGNAL, &action, nullptr);
  sigset_t own;
  sigemptyset(&own), sigaddset(&own, SIGNAL);
  pthread_sigmask(SIG_UNBLOCK, &own, nullptr);
  return sampler;
}

volatile int64_t* sampler_label(Sampler* sampler) { return &sampler->label; }

// How many samples have found room so far.
volatile uint64_t* sampler_count(Sampler* sampler) { return &sampler->head; }

void sampler_start(Sampler* sampler, int64_t mean_ns) {
  sampler->mean_ns = mean_ns;
  sampler->running = true;
  arm(sampler, sampler->left > 0 ? sampler->left : interval(sampler));
}

// What is left of the interval is kept for the next start: else work shorter than an interval is never sampled.
void sampler_stop(Sampler* sampler) {
  sampler->running = false;  // before the timer is disarmed: a signal that waits would arm it again
  itimerspec none{}, left{};
  timer_settime(sampler->timer, 0, &none, &left);
  const double ns = static_cast<double>(left.it_value.tv_sec) * 1e9 + static_cast<double>(left.it_value.tv_nsec);
  sampler->left = ns / static_cast<double>(sampler->mean_ns);
}

// Moves the oldest samples, `room` at most, to `into`.
uint64_t sampler_take(Sampler* sampler, Sample* into, uint64_t room) {
  uint64_t count = sampler->head - sampler->tail;
  if (count > room) count = room;
  for (uint64_t index = 0; index < count; ++index)
    into[index] = sampler->ring[(sampler->tail + index) % sampler->capacity];
  sampler->tail = sampler->tail + count;
  return count;
}

// Samples that found the ring full, since this was asked last.
uint64_t sampler_lost(Sampler* sampler) {
  const uint64_t lost = sampler->lost;
  sampler->lost = 0;
  return lost;
}

void sampler_free(Sampler* sampler) {
  sampler_stop(sampler);
  timer_delete(sampler->timer);
  free(sampler->ring);
  free(sampler);
}

}  // extern "C"
