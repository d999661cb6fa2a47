package vmtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// addModules copies the chosen modules to a directory of their own, decompresses
// them, since the guest's loader cannot, and lets depmod make the lists.
func (s *store) addModules(ctx context.Context, m image, k Kernel, patterns []string,
	work string) error {
	from := filepath.Join(s.kernelDir(k.Suite), "usr/lib/modules", k.Release)
	dep, err := os.ReadFile(filepath.Join(from, "modules.dep"))
	if err != nil {
		return err
	}
	files, err := parseModulesDep(string(dep)).choose(patterns)
	if err != nil {
		return err
	}
	to := filepath.Join(work, "usr/lib/modules", k.Release)
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if err := os.Symlink("usr/lib", filepath.Join(work, "lib")); err != nil {
		return err
	}
	for _, f := range slices.Concat(files, []string{"modules.builtin", "modules.builtin.modinfo",
		"modules.order"}) {
		if err := copyFile(filepath.Join(from, f), filepath.Join(to, f)); err != nil {
			return err
		}
	}
	if err := decompress(ctx, to, files); err != nil {
		return err
	}
	if _, err := (command{Name: "depmod", Args: []string{"-b", work, k.Release}}).output(
		ctx); err != nil {
		return err
	}
	return m.tree("/usr/lib/modules/"+k.Release, to)
}

// decompressors turn files into ones without the extension, in place.
var decompressors = map[string]command{
	".xz":  {Name: "xz", Args: []string{"-d", "--"}},
	".zst": {Name: "zstd", Args: []string{"-d", "-q", "--rm", "--"}},
	".gz":  {Name: "gzip", Args: []string{"-d", "--"}},
}

func decompress(ctx context.Context, dir string, files []string) error {
	for _, ext := range []string{".xz", ".zst", ".gz"} {
		c := decompressors[ext]
		c.Dir, c.Args = dir, slices.Clone(c.Args)
		before := len(c.Args)
		for _, f := range files {
			if strings.HasSuffix(f, ext) {
				c.Args = append(c.Args, f)
			}
		}
		if len(c.Args) == before {
			continue
		}
		if _, err := c.output(ctx); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = dst.ReadFrom(src)
	return errors.Join(err, dst.Close())
}
