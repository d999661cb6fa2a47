#!/usr/bin/env bash
# kernel.sh SERIES SUITE CACHE [TOOL...] puts a Debian cloud kernel into the directory CACHE, if there
# is none, and beside it a base image: an initramfs with modules, busybox
# and these programs of the machine. It prints the kernel's release, and the paths of both.
# kernel.sh sources SUITE prints the apt sources of a suite.
#
# apt downloads from the machine's own sources, with the suite's name replaced, and checks Debian's
# signatures. Packages are unpacked and not installed; nothing outside CACHE changes.
set -euo pipefail
export LC_ALL=C PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

missing() { echo "missing: $*" >&2; exit 3; }
say() { echo "kernel $series: $*" >&2; }

# sources SUITE: the entries for a Debian suite, with that one's name. Those of others, which know
# only their own suites, are left out, and so are backports, which would bring another series. sid
# has neither updates nor a security suite.
sources() {
	local given=${KERNLB_VM_SOURCES:-}/$1.sources apt=${KERNLB_VM_APT:-/etc/apt}
	if [ -f "$given" ]; then cat "$given"; return; fi
	local known="buster|bullseye|bookworm|trixie|forky|duke|sid|(old)*stable|testing|unstable"
	known="^($known)(-updates|-security)?\$"
	{ cat "$apt"/sources.list "$apt"/sources.list.d/*.list 2>/dev/null || true; } |
		tr '\t' ' ' | sed -nE \
		's/#.*//; s/^deb +(\[([^]]*)\] *)?([^ []+) +([^ ]+) +.*main.*/\3|\4|\2/p' |
		while IFS='|' read -r uri suites options; do
			printf 'Types: deb\nURIs: %s\nSuites: %s\n' "$uri" "$suites"
			for o in $options; do printf '%s: %s\n' "${o%%=*}" "${o#*=}"; done
			echo
		done | cat - <(for f in "$apt"/sources.list.d/*.sources; do
			[ ! -f "$f" ] || { grep -v '^#' "$f"; echo; }
		done) | awk -v suite="$1" -v known="$known" 'BEGIN { RS = ""; FS = "\n" } {
			out = ""; found = 0
			for (i = 1; i <= NF; i++) {
				split($i, f, ":"); name = tolower(f[1])
				if (name == "enabled" && $i ~ /no/ || name == "types" && $i !~ /deb( |$)/) next
				if (name ~ /^(types|enabled|components|arch.*|lang.*|targets?)$/) continue
				if (name == "uris" && $i ~ /cdrom:/) next
				if (name == "suites") {
					n = split(substr($i, length(f[1]) + 2), s, " "); line = ""
					for (j = 1; j <= n; j++) if (s[j] ~ known) {
						part = s[j]; if (!sub(/^[^-]*-/, "-", part)) part = ""
						if (suite == "sid" && part != "") continue
						line = line " " suite part
					}
					if (line == "") next
					$i = "Suites:" line; found = 1
				}
				out = out $i "\n"
			}
			if (found && !seen[out]++)
				printf "Types: deb\n%sComponents: main\nTargets: Packages\n\n", out
		}'
}

# fetch downloads and unpacks the kernel, and leaves its directory at $dir.
fetch() {
	local work=$dir.new apt image packages modules
	rm -rf "$work"
	mkdir -p "$work"/{lists,archives}/partial "$work"/{root,kernel/usr/lib/modules}
	sources "$suite" >"$work/suite.sources"
	[ -s "$work/suite.sources" ] || missing "an apt source of Debian in /etc/apt to derive $suite" \
		"from: give one as \$KERNLB_VM_SOURCES/$suite.sources"
	apt=(-q -o Dir::Etc::SourceList="$work/suite.sources" -o Dir::Etc::SourceParts=/dev/null
		-o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null
		-o Dir::State::Lists="$work/lists/" -o Dir::State::Status=/dev/null
		-o Dir::Cache="$work/" -o APT::Architecture=amd64 -o APT::Architectures=amd64
		-o APT::Sandbox::User=root -o Acquire::Check-Valid-Until=false
		-o Acquire::Languages=none -o Acquire::Retries=3)
	say "looking for the newest kernel of $suite"
	# One mirror among several may lack the suite.
	apt-get "${apt[@]}" update >"$work/log" 2>&1 || true
	# This package depends on the newest cloud kernel. Cloud kernels have no drivers for hardware,
	# which makes them small. From 7.x on a kernel is in several packages.
	image=$(apt-cache "${apt[@]}" depends linux-image-cloud-amd64 2>>"$work/log" |
		grep -oE 'linux-image-[0-9].*-cloud-amd64$' | sort -V | tail -n 1) || true
	[ -n "$image" ] || missing "a kernel of Debian $suite: no network, or the machine's mirror" \
		"does not have that suite: $(tail -n 3 "$work/log")"
	packages=$(apt-cache "${apt[@]}" depends --recurse --important "$image" |
		grep -E '^linux-(image|binary|modules|base)-[0-9].*-cloud-amd64$' | sort -u)
	say "downloading" $packages
	(cd "$work" && apt-get "${apt[@]}" download $packages >>log 2>&1) ||
		missing "a download of $image: $(tail -n 3 "$work/log")"
	for p in "$work"/*.deb; do dpkg-deb -x "$p" "$work/root"; done
	modules=$(echo "$work"/root/{,usr/}lib/modules/*/kernel | tr ' ' '\n' | grep -v '\*')
	modules=${modules%/kernel}
	mv "$(find "$work/root" -name 'vmlinuz*' -type f)" "$work/kernel/vmlinuz"
	mv "$modules" "$work/kernel/usr/lib/modules/"
	ln -s usr/lib "$work/kernel/lib" # where depmod looks
	depmod -b "$work/kernel" "${modules##*/}"
	[[ ${modules##*/} == ${series%x}* ]] || { say "$suite now has ${modules##*/}"; exit 1; }
	rm -rf "$dir"
	mv "$work/kernel" "$dir"
	rm -rf "$work"
}

# What a dataplane can touch, and what tests of one need around it. A name that is built in, or not
# there, is no error. Names are as in modules.dep, with underscores.
modules="ip_vs.*|ipip|(ip_|ip6_)?gre|sit|ip6_tunnel|tunnel[46]|fou6?
	nft_.*|nf_.*|nfnetlink.*
	x_tables|xt_.*|ip6?_tables|ip6?t_.*|ip6?table_.*|ip_set.*
	dummy|veth|bridge|br_netfilter|8021q|vrf|macvlan|ipvlan|tun|ifb|sch_netem|act_mirred
	sctp|sctp_diag|libcrc32c|crc32.*|hmac|md5|sha1.*|sha256.*
	(inet|tcp|udp|raw|unix|netlink)_diag|af_packet.*"

# add puts a file of the machine into the image, with the links on the way to it.
add() {
	local f target
	f=$(realpath "$(dirname "$1")")/$(basename "$1")
	[ ! -e "$root$f" ] && [ ! -L "$root$f" ] || return 0
	mkdir -p "$root$(dirname "$f")"
	cp -P --preserve=mode "$f" "$root$f"
	if [ -L "$f" ]; then
		target=$(readlink "$f")
		case $target in /*) add "$target" ;; *) add "$(dirname "$f")/$target" ;; esac
	else
		files+=("$f")
	fi
}

# build makes the base image, laid out as today's Debian: /bin, /sbin, /lib and /lib64 are in /usr.
build() {
	local root=$dir/root files=() from=$dir/usr/lib/modules/$release list to f busybox
	rm -rf "$root"
	mkdir -p "$root"/{dev,etc,mnt,proc,root,run,sys,tmp,var/lib} \
		"$root"/usr/{bin,sbin,lib,lib64} "$root/usr/lib/modules/$release"
	for f in bin sbin lib lib64; do ln -s "usr/$f" "$root/$f"; done
	ln -s /run "$root/var/run"
	list=$(awk -F: -v want="^($(echo $modules | tr ' ' '|'))\$" '{ name = $1
		sub(/.*\//, "", name); sub(/\.ko.*/, "", name); gsub(/-/, "_", name)
		if (name ~ want) print $1 $2 }' "$from/modules.dep" | tr ' ' '\n' | sort -u)
	to=$root/usr/lib/modules/$release
	(cd "$from" && cp --parents $list modules.builtin modules.builtin.modinfo modules.order "$to")
	# The guest's loader cannot decompress.
	find "$to" -name '*.xz' -exec xz -d {} +
	find "$to" -name '*.zst' -exec zstd -dq --rm {} +
	depmod -b "$root" "$release"
	for f in "${tools[@]}"; do add "$f"; done
	if [ ${#tools[@]} -gt 0 ]; then # what iptables and nft load while they run
		for f in /usr/lib/*/xtables/*.so /etc/protocols /etc/services; do
			[ ! -e "$f" ] || add "$f"
		done
		list=$(ldd "${files[@]}" 2>/dev/null || true)
		! grep 'not found' <<<"$list" >&2 || missing "a shared library"
		for f in $(grep -oE '[[:space:]]/[^ :]+ [(]0x' <<<"$list" | sed 's/ (0x$//' | sort -u); do
			add "$f"
		done
	fi
	busybox=$(command -v busybox)
	cp "$busybox" "$root/usr/bin/busybox"
	for f in $(busybox --list-full); do # where no program of the machine is
		[ -e "$root/usr/bin/${f##*/}" ] || [ -e "$root/usr/sbin/${f##*/}" ] ||
			ln -s /usr/bin/busybox "$root/$f"
	done
	printf '%s\n' root:x:0:0:root:/root:/bin/sh nobody:x:65534:65534:nobody:/:/bin/false \
		>"$root/etc/passwd"
	printf '%s\n' root:x:0: nogroup:x:65534: >"$root/etc/group"
	printf '%s\n' '127.0.0.1 localhost vmtest' '::1 localhost' >"$root/etc/hosts"
	printf '%s: files\n' passwd group hosts protocols services >"$root/etc/nsswitch.conf"
	(cd "$root" && find . -mindepth 1 | sort | busybox cpio -o -H newc 2>/dev/null) >"$base.new"
	rm -rf "$root"
	find "$dir" -name '*.cpio' -mtime +7 -delete
	mv "$base.new" "$base"
}

if [ "$1" = sources ]; then sources "$2"; exit; fi
series=$1 suite=$2 dir=$3/kernels/$2
shift 3
for f in apt-get:apt dpkg-deb:dpkg depmod:kmod xz:xz-utils zstd:zstd busybox:busybox-static \
	flock:util-linux; do
	command -v "${f%:*}" >/dev/null || missing "the program ${f%:*} (Debian package ${f#*:})"
done
! ldd "$(command -v busybox)" >/dev/null 2>&1 || missing "a static busybox (busybox-static)"
tools=()
for f in "$@"; do
	tools+=("$(command -v "$f")") || missing "the program $f"
done
mkdir -p "${dir%/*}"
exec 9>"$dir.lock"
flock 9
[ -f "$dir/vmlinuz" ] || fetch
release=$(ls "$dir/usr/lib/modules")
base=$dir/$(cat "$0" <(stat -Lc '%n %s %Y' "$dir/vmlinuz" "$(command -v busybox)" \
	"${tools[@]}") | sha256sum | cut -c1-16).cpio
if [ -f "$base" ]; then touch "$base"; else say "building the base image"; build; fi
printf '%s\n' "$release" "$dir/vmlinuz" "$base"
