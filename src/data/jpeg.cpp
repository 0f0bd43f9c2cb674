// SPDX-License-Identifier: Apache-2.0
#include "data/jpeg.hpp"

#include <cassert>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <jpeglib.h>  // needs <cstdio> before it

#include "core/error.hpp"

namespace holdfast::data {
namespace {

/// libjpeg is C: errors leave it by longjmp, so no object with a destructor may be alive between the call and
/// setjmp.
struct ErrorExit {
    jpeg_error_mgr manager;  // first: libjpeg hands back a pointer to it
    std::jmp_buf jump;
    char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void leave(j_common_ptr info) {
    auto* const exit = reinterpret_cast<ErrorExit*>(info->err);
    info->err->format_message(info, exit->message);
    std::longjmp(exit->jump, 1);
}

/// Level -1 is a warning about damaged data; others are traces.
void warn(j_common_ptr info, int level) {
    if (level < 0) leave(info);
}

void discard(j_common_ptr) {}

void install(ErrorExit& exit, jpeg_error_mgr*& manager) {
    manager = jpeg_std_error(&exit.manager);
    exit.manager.error_exit = leave;
    exit.manager.emit_message = warn;
    exit.manager.output_message = discard;
    exit.message[0] = '\0';
}

/// Reads the header; with `row` (width x 3 values) and `pixels_CHW` also decodes. False: exit.message says
/// why not.
bool decode(std::span<std::uint8_t const> jpeg, ErrorExit& exit, ImageShape& shape, std::uint8_t* row,
            std::uint8_t* pixels_CHW) {
    jpeg_decompress_struct info;
    install(exit, info.err);
    if (setjmp(exit.jump) != 0) {
        jpeg_destroy_decompress(&info);
        return false;
    }
    jpeg_create_decompress(&info);
    jpeg_mem_src(&info, jpeg.data(), static_cast<unsigned long>(jpeg.size()));
    jpeg_read_header(&info, TRUE);
    int const height = static_cast<int>(info.image_height);
    int const width = static_cast<int>(info.image_width);
    if (pixels_CHW == nullptr) {
        shape = {3, height, width};
    } else if (shape != ImageShape{3, height, width}) {
        std::snprintf(exit.message, sizeof exit.message, "the image is %dx%d, expected %dx%d", width, height,
                      shape.width, shape.height);
        jpeg_destroy_decompress(&info);
        return false;
    } else {
        info.out_color_space = JCS_RGB;
        info.dct_method = JDCT_ISLOW;  // the exact one: same pixels on every processor
        jpeg_start_decompress(&info);
        std::size_t const plane = static_cast<std::size_t>(height) * static_cast<std::size_t>(width);
        for (std::size_t y = 0; y < static_cast<std::size_t>(height); ++y) {
            jpeg_read_scanlines(&info, &row, 1);
            for (std::size_t x = 0; x < static_cast<std::size_t>(width); ++x) {
                for (std::size_t c = 0; c < 3; ++c) {
                    pixels_CHW[c * plane + y * static_cast<std::size_t>(width) + x] = row[3 * x + c];
                }
            }
        }
        jpeg_finish_decompress(&info);
    }
    jpeg_destroy_decompress(&info);
    return true;
}

/// `*out` is malloc'ed. False: exit.message says why not.
bool encode(std::uint8_t* pixels_HWC, ImageShape shape, int quality, ErrorExit& exit, unsigned char** out,
            unsigned long* out_size) {
    jpeg_compress_struct info;
    install(exit, info.err);
    if (setjmp(exit.jump) != 0) {
        jpeg_destroy_compress(&info);
        return false;
    }
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, out, out_size);
    info.image_width = static_cast<JDIMENSION>(shape.width);
    info.image_height = static_cast<JDIMENSION>(shape.height);
    info.input_components = 3;
    info.in_color_space = JCS_RGB;
    jpeg_set_defaults(&info);  // 4:2:0
    jpeg_set_quality(&info, quality, TRUE);
    info.dct_method = JDCT_ISLOW;
    jpeg_start_compress(&info, TRUE);
    for (int y = 0; y < shape.height; ++y) {
        JSAMPROW row = pixels_HWC + static_cast<std::size_t>(y) * static_cast<std::size_t>(shape.width) * 3;
        jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
    jpeg_destroy_compress(&info);
    return true;
}

}  // namespace

std::vector<std::uint8_t> encode_jpeg(std::span<std::uint8_t const> pixels_CHW, ImageShape shape,
                                      int quality) {
    require(shape.channels == 3, ExitCode::do_not_requeue,
            "images of {} channels cannot become JPEGs (RGB is needed)", shape.channels);
    require(quality >= 1 && quality <= 100, ExitCode::do_not_requeue, "JPEG quality {} (1 to 100)", quality);
    assert(pixels_CHW.size() == static_cast<std::size_t>(shape.num_values()));
    std::size_t const plane = pixels_CHW.size() / 3;
    std::vector<std::uint8_t> pixels_HWC(pixels_CHW.size());
    for (std::size_t i = 0; i < plane; ++i) {
        for (std::size_t c = 0; c < 3; ++c) pixels_HWC[3 * i + c] = pixels_CHW[c * plane + i];
    }
    ErrorExit exit;
    unsigned char* bytes = nullptr;
    unsigned long size = 0;
    bool const encoded = encode(pixels_HWC.data(), shape, quality, exit, &bytes, &size);
    std::unique_ptr<unsigned char, decltype(&std::free)> const owner(bytes, &std::free);
    if (!encoded) throw JpegError(exit.message);
    return {bytes, bytes + size};
}

ImageShape jpeg_shape(std::span<std::uint8_t const> jpeg) {
    ErrorExit exit;
    ImageShape shape;
    if (!decode(jpeg, exit, shape, nullptr, nullptr)) throw JpegError(exit.message);
    return shape;
}

void decode_jpeg(std::span<std::uint8_t const> jpeg, ImageShape shape, std::span<std::uint8_t> pixels_CHW) {
    assert(shape.channels == 3 && pixels_CHW.size() == static_cast<std::size_t>(shape.num_values()));
    ErrorExit exit;
    std::vector<std::uint8_t> row(static_cast<std::size_t>(shape.width) * 3);
    if (!decode(jpeg, exit, shape, row.data(), pixels_CHW.data())) throw JpegError(exit.message);
}

}  // namespace holdfast::data
