// Issues certificates for tests.
#include "ferry/net/testing/certificates.h"

#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/random.h"

namespace ferry::net {
namespace {

struct Free {
  void operator()(EVP_PKEY* key) const noexcept { ::EVP_PKEY_free(key); }
  void operator()(X509* certificate) const noexcept { ::X509_free(certificate); }
  void operator()(BIO* bio) const noexcept { ::BIO_free(bio); }
};
using KeyPtr = std::unique_ptr<EVP_PKEY, Free>;
using CertificatePtr = std::unique_ptr<X509, Free>;

KeyPtr NewKey() {
  KeyPtr key(::EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"));
  FERRY_CHECK(key != nullptr);
  return key;
}

void Extend(X509* certificate, X509* issuer, int what, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  ::X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = ::X509V3_EXT_conf_nid(nullptr, &context, what, value.c_str());
  FERRY_CHECK(extension != nullptr, value);
  FERRY_CHECK(::X509_add_ext(certificate, extension, -1) == 1);
  ::X509_EXTENSION_free(extension);
}

CertificatePtr NewCertificate(const std::string& name, EVP_PKEY* key, int days) {
  CertificatePtr made(::X509_new());
  X509* const certificate = made.get();
  constexpr int kVersion3 = 2;
  FERRY_CHECK(::X509_set_version(certificate, kVersion3) == 1);
  std::uint32_t serial = 0;
  FillRandom(std::as_writable_bytes(std::span(&serial, 1)));
  FERRY_CHECK(::ASN1_INTEGER_set_uint64(::X509_get_serialNumber(certificate), serial) == 1);
  constexpr long kDay = 24L * 3600;
  ::X509_gmtime_adj(::X509_getm_notBefore(certificate), -60 * kDay);
  ::X509_gmtime_adj(::X509_getm_notAfter(certificate), days * kDay);
  ::X509_NAME_add_entry_by_txt(::X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  FERRY_CHECK(::X509_set_pubkey(certificate, key) == 1);
  return made;
}

std::unique_ptr<BIO, Free> NewFile(const std::string& path) {
  std::unique_ptr<BIO, Free> file(::BIO_new_file(path.c_str(), "w"));
  FERRY_CHECK(file != nullptr, path);
  return file;
}

}  // namespace

struct TestAuthority::Keys {
  KeyPtr key;
  CertificatePtr certificate;
};

TestAuthority::TestAuthority(const std::string& name)
    : folder_(::testing::TempDir() + "ferry_tls_XXXXXX"), keys_(std::make_unique<Keys>()) {
  FERRY_CHECK(::mkdtemp(folder_.data()) != nullptr, folder_);
  file_ = folder_ + "/ca.pem";
  keys_->key = NewKey();
  keys_->certificate = NewCertificate(name, keys_->key.get(), 30);
  X509* const own = keys_->certificate.get();
  ::X509_set_issuer_name(own, ::X509_get_subject_name(own));
  Extend(own, own, NID_basic_constraints, "critical,CA:TRUE");
  Extend(own, own, NID_key_usage, "critical,keyCertSign");
  Extend(own, own, NID_subject_key_identifier, "hash");
  FERRY_CHECK(::X509_sign(own, keys_->key.get(), ::EVP_sha256()) > 0);
  FERRY_CHECK(::PEM_write_bio_X509(NewFile(file_).get(), own) == 1);
}

TestAuthority::~TestAuthority() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

TestAuthority::Issued TestAuthority::Issue(const std::string& name, const std::string& address,
                                           int days) {
  const KeyPtr key = NewKey();
  const CertificatePtr made = NewCertificate(name, key.get(), days);
  X509* const authority = keys_->certificate.get();
  ::X509_set_issuer_name(made.get(), ::X509_get_subject_name(authority));
  Extend(made.get(), authority, NID_subject_alt_name,
         "DNS:" + name + (address.empty() ? "" : ",IP:" + address));
  FERRY_CHECK(::X509_sign(made.get(), keys_->key.get(), ::EVP_sha256()) > 0);
  const std::string stem = folder_ + "/" + std::to_string(++issued_);
  Issued issued{stem + ".cert.pem", stem + ".key.pem"};
  FERRY_CHECK(::PEM_write_bio_X509(NewFile(issued.cert).get(), made.get()) == 1);
  FERRY_CHECK(::PEM_write_bio_PrivateKey(NewFile(issued.key).get(), key.get(), nullptr, nullptr, 0,
                                         nullptr, nullptr) == 1);
  std::filesystem::permissions(issued.key, std::filesystem::perms::owner_read);
  return issued;
}

Config TestAuthority::Use(Config base, const std::string& name) {
  const Issued issued = Issue(name);
  base.tls = TlsMode::kCert;
  base.tls_cert = issued.cert;
  base.tls_key = issued.key;
  base.tls_ca = file_;
  return base;
}

}  // namespace ferry::net
