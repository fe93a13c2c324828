// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Image classification: a convolutional network with batch norm over the batches of all ranks (SyncBatchNorm), fed by a
// DataLoader whose sampler gives each rank its part of the images.
//
//   gradwire-run -n 2 image_classification                  draws its own images: ten noisy shapes
//   gradwire-run -n 2 image_classification --data mnist/    MNIST: the folder with the unpacked idx files
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "gradwire/gradwire.h"

namespace {

constexpr std::int64_t kSide = 28;
constexpr const char* kImages = "/train-images-idx3-ubyte";
constexpr const char* kLabels = "/train-labels-idx1-ubyte";

// An idx file: a magic number whose last byte is the number of dimensions, the sizes (big-endian), then bytes.
torch::Tensor read_idx(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  const auto number = [&in] {
    std::array<unsigned char, 4> b{};
    in.read(reinterpret_cast<char*>(b.data()), b.size());
    return std::int64_t{b[0]} << 24 | std::int64_t{b[1]} << 16 | std::int64_t{b[2]} << 8 | std::int64_t{b[3]};
  };
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(number() & 255));
  for (auto& size : sizes) size = number();
  if (!in || sizes.empty()) throw std::runtime_error(file + " is no idx file");
  auto bytes = torch::empty(sizes, torch::kByte);
  in.read(static_cast<char*>(bytes.data_ptr()), bytes.numel());
  if (!in) throw std::runtime_error(file + " ends too early");
  return bytes;
}

void write_idx(const std::string& file, const torch::Tensor& bytes) {
  std::ofstream out(file, std::ios::binary);
  const auto number = [&out](std::int64_t value) {
    for (const int shift : {24, 16, 8, 0}) out.put(static_cast<char>(value >> shift & 255));
  };
  number(0x800 + bytes.dim());  // 8: unsigned bytes
  for (const auto size : bytes.sizes()) number(size);
  out.write(static_cast<const char*>(bytes.const_data_ptr()), bytes.numel());
}

// 4,000 images of ten random shapes, with noise.
void draw_images(const std::string& folder) {
  torch::manual_seed(1);
  const auto shapes = torch::rand({10, kSide, kSide}).gt(0.6).to(torch::kFloat);
  const auto labels = torch::randint(10, {4000}, torch::kLong);
  const auto noisy = shapes.index_select(0, labels) * 120 + torch::rand({4000, kSide, kSide}) * 135;
  write_idx(folder + kImages, noisy.to(torch::kByte).contiguous());
  write_idx(folder + kLabels, labels.to(torch::kByte));
}

struct Images : torch::data::datasets::Dataset<Images> {
  explicit Images(const std::string& folder) : images(read_idx(folder + kImages)), labels(read_idx(folder + kLabels)) {}
  torch::data::Example<> get(std::size_t index) override {
    const auto i = static_cast<std::int64_t>(index);
    return {images[i].to(torch::kFloat).div(255).unsqueeze(0), labels[i].to(torch::kLong)};
  }
  torch::optional<std::size_t> size() const override { return static_cast<std::size_t>(labels.size(0)); }

  torch::Tensor images, labels;
};

struct Net : torch::nn::Module {
  Net() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
    register_module("last", last);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(norm(first(x))), 2);
    x = torch::max_pool2d(torch::relu(second(x)), 2);
    return last(x.flatten(1));
  }

  torch::nn::Conv2d first{torch::nn::Conv2dOptions(1, 8, 3).padding(1)};
  gradwire::SyncBatchNorm norm{8};  // mean and variance over the batches of all ranks
  torch::nn::Conv2d second{torch::nn::Conv2dOptions(8, 16, 3).padding(1)};
  torch::nn::Linear last{16 * 7 * 7, 10};
};

void train(gradwire::ProcessGroup& group, const std::string& folder) {
  const auto rank = static_cast<std::size_t>(group.rank());
  auto data = Images(folder).map(torch::data::transforms::Stack<>());
  // Each epoch a new order, the same on all ranks; each rank takes its part. No rank gets fewer images than another.
  torch::data::samplers::DistributedRandomSampler sampler(data.size().value(), static_cast<std::size_t>(group.size()),
                                                          rank);
  torch::manual_seed(1);
  Net net;
  gradwire::DistributedDataParallel ddp(net);
  torch::optim::Adam optimizer(ddp.parameters(), 1e-3);
  int step = 0;
  for (std::size_t epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(epoch);  // before the loader, which resets a copy of the sampler
    auto loader = torch::data::make_data_loader(data, sampler, torch::data::DataLoaderOptions(50));
    double right = 0;
    double seen = 0;
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      const auto scores = ddp(batch.data);
      const auto loss = torch::cross_entropy_loss(scores, batch.target);
      loss.backward();
      optimizer.step();
      right += scores.argmax(1).eq(batch.target).sum().item<double>();
      seen += static_cast<double>(batch.target.size(0));
      if (rank == 0 && step++ % 20 == 0) std::printf("step %4d  loss %.4f\n", step - 1, loss.item<double>());
    }
    const auto counts = torch::tensor({right, seen}, torch::kDouble);
    group.all_reduce({counts})->wait();  // over the images of all ranks
    if (rank == 0) {
      std::printf("epoch %zu  %.1f%% right of %.0f images\n", epoch,
                  100 * counts[0].item<double>() / counts[1].item<double>(), counts[1].item<double>());
    }
  }
  std::printf("rank %zu ends with running mean %.17g\n", rank, net.norm->running_mean.sum().item<double>());
}

}  // namespace

int main(int argc, char** argv) {
  const auto group = gradwire::init_process_group();
  const bool given = argc == 3 && std::string(argv[1]) == "--data";
  const auto scratch = std::filesystem::temp_directory_path() / ("gradwire-images-" + std::to_string(::getuid()));
  if (!given && group->rank() == 0) {
    std::filesystem::create_directories(scratch);
    draw_images(scratch);
  }
  group->barrier()->wait();
  train(*group, given ? argv[2] : scratch.string());
  gradwire::destroy_process_group();
}
