// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The skinny products against long double sums, and every set of kernels against the reference, bit for bit.
#include "gradwire/kernels/matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gradwire/kernels/dispatch.h"
#include "gradwire/kernels/dispatch_internal.h"
#include "gradwire/kernels/matrix_internal.h"

namespace gradwire::kernels {
namespace {

template <class T>
std::vector<T> random_values(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<T> uniform(-1, 1);
  std::vector<T> values(count);
  for (T& value : values) value = uniform(random);
  return values;
}

struct Shape {
  std::size_t rows;
  std::size_t columns;
  std::size_t rank;
};

// Every rank up to two groups of runs, and sides around the block of rows and the partial sums.
std::vector<Shape> shapes() {
  std::vector<Shape> list;
  for (std::size_t rank = 1; rank <= 9; ++rank) {
    list.push_back({7, 65, rank});
    list.push_back({33, 100, rank});
  }
  for (const std::size_t rows : {0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17}) {
    for (const std::size_t columns : {0, 1, 15, 16, 17, 31, 63, 64, 65, 130}) list.push_back({rows, columns, 4});
  }
  list.push_back({5, 5, 0});
  return list;
}

template <class T>
struct Results {
  std::vector<T> product, transposed, matrix, residual, without_residual;
};

template <class T>
Results<T> compute(const Shape& shape, std::uint32_t seed) {
  const auto [rows, columns, rank] = shape;
  const auto matrix = random_values<T>(rows * columns, seed);
  const auto left = random_values<T>(rows * rank, seed + 1);
  const auto right = random_values<T>(columns * rank, seed + 2);
  Results<T> got{std::vector<T>(rows * rank, 7), std::vector<T>(columns * rank, 7), matrix,
                 std::vector<T>(rows * columns, 7), matrix};
  skinny_product(matrix.data(), rows, columns, right.data(), rank, got.product.data());
  skinny_product_transposed(matrix.data(), rows, columns, left.data(), rank, got.transposed.data());
  expand(left.data(), right.data(), rank, rows, columns, got.matrix.data(), got.residual.data());
  expand(left.data(), right.data(), rank, rows, columns, got.without_residual.data(), nullptr);
  return got;
}

class MatrixTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { select(GetParam()); }
  void TearDown() override { select(""); }
};

INSTANTIATE_TEST_SUITE_P(Kernels, MatrixTest, testing::ValuesIn(available()),
                         [](const auto& instance) { return instance.param; });

template <class T>
void expect_near_long_double(const Shape& shape) {
  const auto [rows, columns, rank] = shape;
  const auto got = compute<T>(shape, 1);
  const auto matrix = random_values<T>(rows * columns, 1);
  const auto left = random_values<T>(rows * rank, 2);
  const auto right = random_values<T>(columns * rank, 3);
  const long double bound = std::numeric_limits<T>::epsilon() * 200.0L;
  for (std::size_t k = 0; k < rank; ++k) {
    for (std::size_t i = 0; i < rows; ++i) {
      long double sum = 0;
      for (std::size_t j = 0; j < columns; ++j)
        sum += static_cast<long double>(matrix[i * columns + j]) * right[k * columns + j];
      EXPECT_NEAR(got.product[k * rows + i], sum, bound);
    }
    for (std::size_t j = 0; j < columns; ++j) {
      long double sum = 0;
      for (std::size_t i = 0; i < rows; ++i)
        sum += static_cast<long double>(matrix[i * columns + j]) * left[k * rows + i];
      EXPECT_NEAR(got.transposed[k * columns + j], sum, bound);
    }
  }
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      long double sum = 0;
      for (std::size_t k = 0; k < rank; ++k)
        sum += static_cast<long double>(left[k * rows + i]) * right[k * columns + j];
      EXPECT_NEAR(got.matrix[i * columns + j], sum, bound);
      EXPECT_EQ(got.residual[i * columns + j], matrix[i * columns + j] - got.matrix[i * columns + j]);
    }
  }
  EXPECT_EQ(got.without_residual, got.matrix);
}

TEST_P(MatrixTest, ProductsAreThoseOfLongDoubleSums) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.columns << ", rank " << shape.rank);
    expect_near_long_double<float>(shape);
    expect_near_long_double<double>(shape);
  }
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class T>
void expect_bits_of_the_reference(const Shape& shape, const std::string& kernels) {
  select("scalar");
  const auto expected = compute<T>(shape, 5);
  select(kernels);
  const auto got = compute<T>(shape, 5);
  EXPECT_TRUE(same_bits(got.product, expected.product));
  EXPECT_TRUE(same_bits(got.transposed, expected.transposed));
  EXPECT_TRUE(same_bits(got.matrix, expected.matrix));
  EXPECT_TRUE(same_bits(got.residual, expected.residual));
}

TEST_P(MatrixTest, TheBitsAreThoseOfTheReference) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.columns << ", rank " << shape.rank);
    expect_bits_of_the_reference<float>(shape, GetParam());
    expect_bits_of_the_reference<double>(shape, GetParam());
  }
}

TEST_P(MatrixTest, TheSelectedSetRuns) {
  note_run("nothing");
  (void)compute<float>({16, 64, 4}, 1);
  std::string name(last_run());
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  EXPECT_EQ(name, GetParam() == "scalar" ? "nothing" : GetParam());  // the reference notes nothing
}

// One bad element of the matrix reaches its row of the product and its column of the transposed one, whatever it meets.
TEST_P(MatrixTest, InfinityAndNanAreNotLost) {
  const std::size_t rows = 19;
  const std::size_t columns = 37;
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const float weight : {0.0f, 1.0f}) {
      auto matrix = random_values<float>(rows * columns, 1);
      matrix[11 * columns + 35] = bad;
      const std::vector<float> left(rows, weight);
      const std::vector<float> right(columns, weight);
      std::vector<float> product(rows);
      std::vector<float> transposed(columns);
      skinny_product(matrix.data(), rows, columns, right.data(), 1, product.data());
      skinny_product_transposed(matrix.data(), rows, columns, left.data(), 1, transposed.data());
      for (std::size_t i = 0; i < rows; ++i) EXPECT_EQ(std::isfinite(product[i]), i != 11);
      for (std::size_t j = 0; j < columns; ++j) EXPECT_EQ(std::isfinite(transposed[j]), j != 35);
    }
  }
}

}  // namespace
}  // namespace gradwire::kernels
