// Package cpio writes and reads archives in the "newc" format, the one the
// Linux kernel unpacks as its initramfs.
//
// The format is described in Documentation/driver-api/early-userspace/
// buffer-format.rst of the kernel: every member is a 110-byte ASCII header, the
// name with a closing NUL padded to a multiple of 4, and the data padded
// likewise. The archive ends with a member called TRAILER!!!. The kernel accepts
// several archives after one another, each starting on a multiple of 4.
//
// Output depends on the input alone: times and owners are zero and inode
// numbers count up, so equal members give equal bytes.
package cpio

import (
	"errors"
	"fmt"
	"io"
	"strconv"
)

const (
	magic      = "070701"
	headerSize = 110
	trailer    = "TRAILER!!!"

	// blockSize is what an archive is padded to at its end, so that another one
	// can follow: cpio(1) writes blocks of 512 bytes.
	blockSize = 512

	// maxName bounds names when reading: PATH_MAX of linux/limits.h.
	maxName = 4096
)

// ErrFormat is wrapped by every error about bytes that are not a newc archive.
var ErrFormat = errors.New("not a newc cpio archive")

// File types, the S_IF values of linux/stat.h. A [Header]'s Mode is one of them
// joined with the permission bits.
const (
	TypeMask    = 0o170000
	TypeSymlink = 0o120000
	TypeRegular = 0o100000
	TypeDir     = 0o040000
	TypeChar    = 0o020000
)

// Header describes one member. Owner is always root and the time zero.
type Header struct {
	// Name is the path inside the archive, without a leading slash.
	Name string
	// Mode is a file type joined with permission bits.
	Mode uint32
	// Size is the number of data bytes; for a symbolic link, the length of the
	// target, which is its data. At most 4 GiB - 1.
	Size int64
	// Major and Minor number the device of a device node.
	Major, Minor uint32
}

// fields are the 13 hexadecimal numbers after the magic, in their order:
// c_ino, c_mode, c_uid, c_gid, c_nlink, c_mtime, c_filesize, c_maj, c_min,
// c_rmaj, c_rmin, c_namesize, c_chksum.
type fields [13]uint32

// padding is the number of bytes from n up to a multiple of to.
func padding(n, to int64) int64 { return (to - n%to) % to }

// Writer writes one archive. Make it with [NewWriter]; end it with Close.
type Writer struct {
	w       io.Writer
	written int64
	inode   uint32
}

// NewWriter returns a Writer on w. It does not buffer.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write adds the member h with the data of r, which must give exactly h.Size
// bytes; r may be nil when the size is zero.
func (w *Writer) Write(h Header, r io.Reader) error {
	if h.Name == "" || h.Name == trailer || h.Name[0] == '/' || len(h.Name) >= maxName {
		return fmt.Errorf("write cpio member: bad name %q", h.Name)
	}
	if h.Size < 0 || h.Size > 0xffffffff {
		return fmt.Errorf("write cpio member %s: size %d does not fit", h.Name, h.Size)
	}
	w.inode++
	if err := w.member(h, w.inode, r); err != nil {
		return fmt.Errorf("write cpio member %s: %w", h.Name, err)
	}
	return nil
}

// Close ends the archive and pads it. It does not close the underlying writer.
func (w *Writer) Close() error {
	if err := w.member(Header{Name: trailer}, 0, nil); err != nil {
		return fmt.Errorf("end cpio archive: %w", err)
	}
	if err := w.pad(blockSize); err != nil {
		return fmt.Errorf("end cpio archive: %w", err)
	}
	return nil
}

func (w *Writer) member(h Header, inode uint32, r io.Reader) error {
	links := uint32(1)
	if h.Mode&TypeMask == TypeDir {
		links = 2
	}
	f := fields{
		inode, h.Mode, 0, 0, links, 0, uint32(h.Size), 0, 0, h.Major, h.Minor,
		uint32(len(h.Name) + 1), 0,
	}
	buf := append(make([]byte, 0, headerSize+len(h.Name)+1), magic...)
	for _, v := range f {
		buf = fmt.Appendf(buf, "%08X", v)
	}
	buf = append(append(buf, h.Name...), 0)
	if err := w.raw(buf); err != nil {
		return err
	}
	if err := w.pad(4); err != nil {
		return err
	}
	if h.Size > 0 {
		n, err := io.CopyN(w.w, r, h.Size)
		w.written += n
		if err != nil {
			return fmt.Errorf("%d of %d data bytes: %w", n, h.Size, err)
		}
	}
	return w.pad(4)
}

func (w *Writer) raw(b []byte) error {
	n, err := w.w.Write(b)
	w.written += int64(n)
	return err
}

func (w *Writer) pad(to int64) error {
	if n := padding(w.written, to); n > 0 {
		return w.raw(make([]byte, n))
	}
	return nil
}

// Reader reads one archive, member by member.
type Reader struct {
	r    io.Reader
	read int64
	rest int64 // data bytes of the current member not read yet
}

// NewReader returns a Reader on r.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Next skips what is left of the current member and returns the next one's
// header; io.EOF after the last. Other errors wrap [ErrFormat] or come from the
// underlying reader.
func (r *Reader) Next() (Header, error) {
	if err := r.skip(r.rest); err != nil {
		return Header{}, err
	}
	r.rest = 0
	if err := r.skip(padding(r.read, 4)); err != nil {
		return Header{}, err
	}
	var head [headerSize]byte
	if err := r.full(head[:]); err != nil {
		return Header{}, err
	}
	f, err := parseFields(head)
	if err != nil {
		return Header{}, err
	}
	nameSize := f[11]
	if nameSize < 2 || nameSize > maxName {
		return Header{}, fmt.Errorf("%w: a name of %d bytes", ErrFormat, nameSize)
	}
	name := make([]byte, nameSize)
	if err := r.full(name); err != nil {
		return Header{}, err
	}
	if err := r.skip(padding(r.read, 4)); err != nil {
		return Header{}, err
	}
	h := Header{Name: string(name[:nameSize-1]), Mode: f[1], Size: int64(f[6]), Major: f[9],
		Minor: f[10]}
	if h.Name == trailer {
		return Header{}, io.EOF
	}
	r.rest = h.Size
	return h, nil
}

// Read reads the current member's data, io.EOF at its end.
func (r *Reader) Read(p []byte) (int, error) {
	if r.rest == 0 {
		return 0, io.EOF
	}
	n, err := r.r.Read(p[:min(int64(len(p)), r.rest)])
	r.read += int64(n)
	r.rest -= int64(n)
	if err == io.EOF && r.rest > 0 {
		err = fmt.Errorf("%w: data cut short", ErrFormat)
	}
	return n, err
}

func (r *Reader) full(b []byte) error {
	n, err := io.ReadFull(r.r, b)
	r.read += int64(n)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w: it ends without a trailer", ErrFormat)
	}
	return err
}

func (r *Reader) skip(n int64) error {
	got, err := io.CopyN(io.Discard, r.r, n)
	r.read += got
	if err == io.EOF {
		return fmt.Errorf("%w: data cut short", ErrFormat)
	}
	return err
}

func parseFields(head [headerSize]byte) (fields, error) {
	var f fields
	if string(head[:len(magic)]) != magic {
		return f, fmt.Errorf("%w: magic is %q", ErrFormat, head[:len(magic)])
	}
	for i := range f {
		text := string(head[len(magic)+8*i:][:8])
		v, err := strconv.ParseUint(text, 16, 32)
		if err != nil {
			return f, fmt.Errorf("%w: header number %d is %q", ErrFormat, i, text)
		}
		f[i] = uint32(v)
	}
	return f, nil
}
