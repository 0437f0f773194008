#!/usr/bin/env python3
"""Applies rename tables to a checkout.

    rename.py ROOT [--dry-run] [--quiet] MAP...        apply maps, in the order given
    rename.py ROOT --all [--dry-run]                   apply maps/*.tsv in order of their names

A map has lines `scope<TAB>kind<TAB>old<TAB>new[<TAB>option,...]`; `#` starts a comment line.
  scope   path globs, separated by spaces; `**` crosses folders; `!glob` excludes
  kind    ident   whole identifier in Rust code and in inline format arguments; in comments and docs inside
                  backticks and links, and anywhere in them if the name has several words. `old` may be qualified:
                  `Type::name`, `.name`, `fn name`, `name(`, `name:`; a qualified entry beats a plain one.
          code    exact fragment of Rust code, bounded by whole identifiers; blanks in it are optional
          word    whole word in any text of any file in scope, code included
          phrase  exact text in strings, comments and text files, never in code; a blank also matches a line break
          file    moves a file or folder; Rust modules are renamed with it (mod, use and paths in scope)
          proto   whole identifier in .proto files
          conf    configuration key: whole word in any text file in scope, code included
  option  ok: a collision of this entry is harmless; free: only in files that do not use the new name yet; maybe: no hits are fine; part: a phrase may end
          within a word; code: not in comments and docs
All entries of one map are applied in one pass over each file, so a table may swap two names. Where several entries
of one name cover a file, the last one wins: general ones first, those of one file after them. Scopes name files as
they are before the map is applied.
Nothing is changed outside ROOT, nor in target folders, Cargo.lock and symbolic links.
"""
import argparse
import collections
import fnmatch
import glob
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from rustlex import pieces  # noqa: E402

KINDS = ('ident', 'code', 'word', 'phrase', 'file', 'proto', 'conf')
TEXT = ('.rs', '.md', '.toml', '.proto', '.txt', '.yaml', '.yml', '.js', '.css', '.svg', '.service', '.oar', '.html',
        '.json', '.jsonl')
IDENT = r'[A-Za-z_][A-Za-z0-9_]*'


class Entry:
    def __init__(self, where, scope, kind, old, new, options):
        self.where, self.scope, self.kind, self.old, self.new = where, scope, kind, old, new
        self.options = options
        self.hits = 0
        self.include = [glob_re(g) for g in scope.split() if not g.startswith('!')]
        self.exclude = [glob_re(g[1:]) for g in scope.split() if g.startswith('!')]

    def covers(self, path):
        return any(g.fullmatch(path) for g in self.include) and not any(g.fullmatch(path) for g in self.exclude)

    def plain(self):
        return re.fullmatch(IDENT, self.old) is not None


def glob_re(text):
    out, i = '', 0
    while i < len(text):
        if text[i:i + 3] == '**/':
            out, i = out + '(?:.*/)?', i + 3
        elif text[i:i + 2] == '**':
            out, i = out + '.*', i + 2
        elif text[i] == '*':
            out, i = out + '[^/]*', i + 1
        elif text[i] == '{':
            end = text.index('}', i)
            out += '(?:' + '|'.join(glob_re(p).pattern for p in text[i + 1:end].split(',')) + ')'
            i = end + 1
        else:
            out, i = out + re.escape(text[i]), i + 1
    return re.compile(out)


def read_map(path):
    entries = []
    for number, line in enumerate(open(path), 1):
        line = line.rstrip('\n')
        if not line.strip() or line.startswith('#'):
            continue
        parts = line.split('\t')
        where = f'{os.path.basename(path)}:{number}'
        if len(parts) not in (4, 5) or parts[1] not in KINDS:
            sys.exit(f'{where}: wanted scope, kind, old, new, separated by tabs: {line!r}')
        options = set(parts[4].split(',')) if len(parts) == 5 else set()
        entries.append(Entry(where, *parts[:4], options))
    return entries


def files_in(root):
    out = subprocess.check_output(['git', '-C', root, 'ls-files', '-z', '-c', '-o', '--exclude-standard'])
    for path in sorted(set(out.decode().split('\0'))):
        full = os.path.join(root, path)
        if not path or path == 'Cargo.lock' or path.endswith('/Cargo.lock') or 'target' in path.split('/'):
            continue
        if os.path.islink(full) or not os.path.isfile(full):
            continue
        name = os.path.basename(path)
        if path.endswith(TEXT) or '.' not in name or name in ('Containerfile',):
            try:
                text = open(full, encoding='utf-8', newline='').read()
            except UnicodeDecodeError:
                continue
            yield path, text


def distinctive(name):
    """Whether a name stands for itself in running text: several words, or a path."""
    return '_' in name.strip('_') or re.search(r'[a-z0-9][A-Z]', name) is not None


# ---- identifiers in Rust ----

def code_regex(old):
    tokens = re.findall(rf'{IDENT}|\s+|.', old)
    text = ''.join(r'\s*' if t.isspace() else re.escape(t) + r'\s*' if not re.match(r'\w', t) else re.escape(t)
                   for t in tokens)
    text = re.sub(r'(\\s\*)+$', '', text)
    if re.match(r'\w', old):
        text = r'(?<![A-Za-z0-9_])' + text
    return text + (r'(?![A-Za-z0-9_])' if re.search(r'\w$', old) else '')


def ident_regex(entry):
    """The pattern of one entry in code."""
    old = entry.old
    if entry.kind == 'code':
        return code_regex(old)
    m = re.fullmatch(rf'(fn |struct |enum |mod |let |const |trait |type )?(\.)?((?:{IDENT}::)*{IDENT})(\(|:|!)?', old)
    if not m:
        sys.exit(f'{entry.where}: cannot be an identifier: {old!r}')
    lead, dot, path, tail = m.groups()
    body = r'\s*::\s*'.join(re.escape(p) for p in path.split('::'))
    text = ''
    if lead:
        text += rf'\b{lead.strip()}\s+'
    elif dot:
        text += r'(?<!\.)\.\s*'
    else:
        text += r'(?<![A-Za-z0-9_])'
    text += body
    if tail == '(':
        text += r'(?=\s*(?:::\s*<[^()]*>)?\s*\()'
    elif tail == ':':
        text += r'(?=\s*:(?!:))'
    elif tail == '!':
        text += r'(?=!)'
    text += r'(?![A-Za-z0-9_])'
    return text


def split_new(entry):
    """The replacement without the marks that only choose a place."""
    new = entry.new
    m = re.fullmatch(rf'(fn |struct |enum |mod |let |const |trait |type )?(\.)?(.*?)(\(|:|!)?', new)
    return m.group(3)


class Idents:
    """All identifier entries of one file, as one pattern."""

    def __init__(self, entries):
        self.plain = {}
        qualified = []
        for e in entries:
            if e.kind == 'ident' and e.plain():
                self.plain[e.old] = e  # the last entry that covers a file wins
            else:
                qualified.append(e)
        last = {(e.kind, e.old): e for e in qualified}
        qualified = sorted(last.values(), key=lambda e: -len(e.old))
        self.qualified = qualified
        parts = [f'(?P<q{i}>{ident_regex(e)})' for i, e in enumerate(qualified)]
        parts.append(rf'(?P<plain>{IDENT})')
        self.pattern = re.compile('|'.join(parts))

    def one(self, m):
        if m.lastgroup == 'plain' or m.group('plain') is not None:
            e = self.plain.get(m.group())
            if not e:
                return m.group()
            e.hits += 1
            return e.new
        index = int(m.lastgroup[1:])
        e = self.qualified[index]
        e.hits += 1
        text = m.group()
        if e.kind == 'code':
            return e.new
        new = split_new(e)
        if '::' in new:  # its type may be renamed by an entry of its own
            *owners, last = new.split('::')
            new = '::'.join([self.plain[o].new if o in self.plain else o for o in owners] + [last])
        lead = re.match(r'(?:(?:fn|struct|enum|mod|let|const|trait|type)\s+|\.\s*)?', text).group() \
            if re.match(r'fn |struct |enum |mod |let |const |trait |type |\.', e.old) else ''
        return lead + new

    def code(self, text):
        return self.pattern.sub(self.one, text)

    def argument(self, text):
        """Inline arguments of a format string: `{name}`, `{name:>8}`, `{name.field}` and `width$`."""
        def put(m):
            if (len(m.group(1)) % 2) == 0:
                return m.group()
            inner, e = m.group(2), self.plain.get(m.group(2))
            if e:
                e.hits += 1
                inner = e.new
            spec = m.group(3)
            def width(w):
                e = self.plain.get(w.group(1))
                if e:
                    e.hits += 1
                    return e.new + '$'
                return w.group()
            spec = re.sub(rf'({IDENT})\$', width, spec)
            return m.group(1) + inner + spec + '}'
        return re.sub(rf'(\{{+)({IDENT}|)((?::[^{{}}]*)?)\}}', put, text)

    def prose(self, text):
        """A comment or a page: backticks and links by the whole pattern, the rest by distinctive names only."""
        def distinct(m):
            e = self.plain.get(m.group())
            if e and 'code' not in e.options and distinctive(e.old):
                e.hits += 1
                return e.new
            return m.group()

        def quoted(m):
            inner = m.group()
            if len(inner) > 160:
                return inner
            return self.pattern.sub(lambda x: x.group() if self.is_code_only(x) else self.one(x), inner)
        out, at = '', 0
        for m in re.finditer(r'`[^`\n]+`', text):
            out += re.sub(IDENT, distinct, text[at:m.start()]) + quoted(m)
            at = m.end()
        return out + re.sub(IDENT, distinct, text[at:])

    def is_code_only(self, m):
        if m.group('plain') is not None:
            e = self.plain.get(m.group())
        else:
            e = self.qualified[int(m.lastgroup[1:])]
        return e is not None and 'code' in e.options


def masked(text):
    """The text with strings and comments blanked, at the same offsets."""
    return ''.join(p if k == 'code' else re.sub(r'[^\n]', ' ', p) for k, p in pieces(text))


def block_end(code, start):
    """The offset of the brace that closes the one at `start`."""
    depth = 0
    for i in range(start, len(code)):
        depth += (code[i] == '{') - (code[i] == '}')
        if depth == 0:
            return i
    return len(code)


def variants(text, entries):
    """`Type::Variant` entries where the enum is defined, and `Self::Variant` in its impls."""
    wanted = {e.old: e for e in entries if e.kind == 'ident' and re.fullmatch(rf'{IDENT}::{IDENT}', e.old)}.values()
    if not wanted:
        return text
    edits, code = [], masked(text)
    for e in wanted:
        owner, name = e.old.split('::')
        new = e.new.split('::')[-1]
        if owner not in code or name not in code:
            continue
        for m in re.finditer(rf'\benum\s+{owner}\b[^{{;]*\{{', code):
            end, depth, i = block_end(code, m.end() - 1), 0, m.end()
            fresh = True
            while i < end:
                c = code[i]
                word = re.match(IDENT, code[i:end]) if c.isalpha() or c == '_' else None
                if word:
                    if depth == 0 and fresh and word.group() == name:
                        edits.append((i, i + len(name), new, e))
                    fresh, i = False, i + len(word.group())
                    continue
                if c in '([{':
                    depth += 1
                elif c in ')]}':
                    depth -= 1
                    fresh = fresh or (depth == 0 and c == ']')
                elif c == ',' and depth == 0:
                    fresh = True
                i += 1
        for m in re.finditer(rf'\bimpl\b[^{{;]*\b{owner}\b[^{{;]*\{{', code):
            end = block_end(code, m.end() - 1)
            for v in re.finditer(rf'\bSelf\s*::\s*({name})\b', code[m.end():end]):
                edits.append((m.end() + v.start(1), m.end() + v.end(1), new, e))
    for start, end, new, e in sorted(set(edits), key=lambda x: -x[0]):
        e.hits += 1
        text = text[:start] + new + text[end:]
    return text


_delim = re.compile(rf'(?:({IDENT})\s*!\s*|#!?\[({IDENT})\s*)?([(\[{{])|([)\]}}])')


def in_macros(parts):
    """For each piece, whether it lies in the arguments of a macro or of an attribute such as `#[error(..)]`."""
    stack, out = [], []
    for kind, text in parts:
        out.append(any(stack[-3:]))
        if kind != 'code':
            continue
        for m in _delim.finditer(text):
            if m.group(3):
                macro = m.group(1) or (m.group(2) if m.group(2) == 'error' else None)
                # A block inside a macro is code of its own; a call inside a macro is still near its format string.
                stack.append(bool(macro))
            elif stack:
                stack.pop()
    return out


def rust_idents(text, idents):
    parts = pieces(text)
    macro = in_macros(parts)
    out = []
    for (kind, piece), is_in in zip(parts, macro):
        if kind == 'code':
            out.append(idents.code(piece))
        elif kind == 'string' and is_in:
            out.append(idents.argument(piece))
        elif kind in ('line', 'block'):
            out.append(idents.prose(piece))
        else:
            out.append(piece)
    return ''.join(out)


# ---- phrases and words ----

BREAK = r'(?:[ \t]*\\\n[ \t]*|[ \t]*\n[ \t]*(?://[/!]?|#|\*)?[ \t]*)'


def phrase_regex(old, part=False):
    words = old.split(' ')
    text = rf'(?: |{BREAK})'.join(re.escape(w) for w in words)
    if re.match(r'\w', old):
        text = r'(?<![A-Za-z0-9_])' + text
    if re.search(r'\w$', old) and not part:
        text += r'(?![A-Za-z0-9_])'
    return text


class Phrases:
    def __init__(self, entries):
        self.entries = sorted(entries, key=lambda e: -len(e.old))
        parts = [f'(?P<p{i}>{phrase_regex(e.old, "part" in e.options)})' for i, e in enumerate(self.entries)]
        self.pattern = re.compile('|'.join(parts) + '')
        self.first = re.compile('|'.join(sorted({re.escape(e.old.split(' ')[0]) for e in entries}, key=len)))

    def sub(self, text):
        if not self.first.search(text):
            return text
        out, at = [], 0
        for m in self.pattern.finditer(text):
            e = self.entries[int(m.lastgroup[1:])]
            e.hits += 1
            out.append(text[at:m.start()])
            at = m.end()
            out.append(e.new)
            broken = re.search(BREAK, m.group())
            if broken and at < len(text) and text[at] == ' ':
                out.append(broken.group())
                at += 1
        out.append(text[at:])
        return ''.join(out)


def phrases_in(path, text, phrases):
    if not path.endswith('.rs'):
        return phrases.sub(text)
    # Neighbouring line comments are one text, so that a phrase may cross a line break.
    parts, out, run = pieces(text), [], ''
    i = 0
    while i < len(parts):
        kind, piece = parts[i]
        if kind == 'line':
            run = piece
            while i + 2 < len(parts) and parts[i + 1][0] == 'code' and parts[i + 1][1].strip(' \t') == '\n' \
                    and parts[i + 2][0] == 'line':
                run += parts[i + 1][1] + parts[i + 2][1]
                i += 2
            out.append(phrases.sub(run))
        elif kind in ('string', 'block'):
            out.append(phrases.sub(piece))
        else:
            out.append(piece)
        i += 1
    return ''.join(out)


def words_in(text, entries):
    table = {e.old: e for e in entries}
    alternatives = '|'.join(sorted((re.escape(w) for w in table), key=len, reverse=True))
    pattern = re.compile(rf'(?<![A-Za-z0-9_])(?:{alternatives})(?![A-Za-z0-9_])')

    def put(m):
        e = table[m.group()]
        e.hits += 1
        return e.new
    return pattern.sub(put, text)


# ---- modules ----

def stem(path):
    name = os.path.basename(path)
    name = name[:-3] if name.endswith('.rs') else name
    return os.path.basename(os.path.dirname(path)) if name == 'mod' else name


def module_paths(text, old, new, entry):
    """`mod old;`, `old::x`, `x::old`, and `old` in a `use`: never a variable, a field or a function."""
    def in_code(code):
        def count(m):
            entry.hits += 1
            return m.group(1) + new
        code = re.sub(rf'(\bmod\s+){old}\b', count, code)
        code = re.sub(rf'((?<![A-Za-z0-9_.]))\b{old}\b(?=\s*::)', count, code)
        code = re.sub(rf'(\b(?:crate|super|self)\s*::\s*){old}\b(?!\s*\()', count, code)

        def in_use(m):
            if re.search(rf'\b{old}\s*::', m.group()):  # `use old::old` names an item: the path is done above
                return m.group()
            if re.search(rf'\b{new}\s*::\s*(\{{[^}}]*)?\b{old}\b', m.group()):
                return m.group()
            return re.sub(rf'((?<![A-Za-z0-9_])(?<!{old}::)){old}\b(?!\s+as\b)', count, m.group())
        return re.sub(r'\buse\b[^;]*;', in_use, code)
    parts = pieces(text)
    # Joined, so that a `use` may hold a comment; strings are put aside meanwhile.
    out = []
    for kind, piece in parts:
        if kind == 'code':
            out.append(in_code(piece))
        elif kind in ('line', 'block'):
            def link(m):
                entry.hits += 1
                return m.group(1) + new
            piece = re.sub(rf'(`(?:[A-Za-z0-9_]+::)*){old}\b(?=`|::)', link, piece)
            piece = re.sub(rf'(\[`?(?:[A-Za-z0-9_]+::)+){old}\b(?=`?\]|::)', link, piece)
            out.append(piece)
        else:
            out.append(piece)
    return ''.join(out)


def move(root, old, new, dry, tracked):
    a, b = os.path.join(root, old), os.path.join(root, new)
    if not os.path.exists(a):
        return False
    if os.path.exists(b):
        print(f'warning: {new} exists already', file=sys.stderr)
        return False
    if not dry:
        os.makedirs(os.path.dirname(b), exist_ok=True)
        subprocess.check_call(['git', '-C', root, 'mv', old, new])
    return True


# ---- a whole map ----

def collisions(files, entries):
    """New identifiers that a file which has the old one uses already."""
    out = []
    by_file = {}
    for e in entries:
        if e.kind != 'ident' or e.options & {'ok', 'free'}:
            continue
        if re.fullmatch(rf'{IDENT}::{IDENT}', e.old):
            continue
        new = split_new(e).split('::')[-1]
        old = e.old
        last = re.sub(r'^(fn |struct |enum |mod |let |const |trait |type |\.)', '', old).rstrip('(:!').split('::')[-1]
        if new == last:
            continue
        renamed_away = any(o.kind == 'ident' and o.plain() and o.old == new and o.scope == e.scope for o in entries)
        if renamed_away:
            continue
        pattern = re.compile(ident_regex(e))
        for path, text in files.items():
            if not path.endswith('.rs') or not e.covers(path):
                continue
            if path not in by_file:
                by_file[path] = set(re.findall(IDENT, ''.join(t for k, t in pieces(text) if k == 'code')))
            if last in by_file[path] and new in by_file[path] and pattern.search(text):
                out.append((e, new, path))
    return out


def functions(code):
    """Spans of outermost functions, by offset."""
    at = 0
    while True:
        m = re.compile(r'\bfn\s+\w+').search(code, at)
        if not m:
            return
        depth, i, n = 0, m.end(), len(code)
        while i < n and not (depth == 0 and code[i] in '{;'):
            depth += (code[i] in '([') - (code[i] in ')]')
            i += 1
        end = block_end(code, i) if i < n and code[i] == '{' else i
        yield m.start(), end
        at = max(end, m.end())


def bare(name):
    """A name where it can be a variable: no field, no call, no path, no key of a struct literal."""
    return re.compile(rf'(?<![A-Za-z0-9_.:\'#]){name}(?![A-Za-z0-9_])(?!\s*(?:\(|::|!(?!=)))')


def shadows(files, entries):
    """Functions in which the new name is a variable already: the rename could change which one is meant."""
    out = []
    for path, text in files.items():
        if not path.endswith('.rs'):
            continue
        mine = {}
        for e in entries:
            if e.kind == 'ident' and e.plain() and 'free' not in e.options and e.covers(path):
                mine[e.old] = e
        mine = {old: e for old, e in mine.items() if re.match('[a-z]', e.new) and old in text and e.new in text}
        if not mine:
            continue
        code = masked(text)
        spans = list(functions(code))
        for old, e in mine.items():
            if e.new in mine:  # is renamed itself
                continue
            a, b = bare(old), bare(e.new)
            for start, end in spans:
                body = code[start:end]
                if a.search(body) and b.search(body):
                    line = code.count('\n', 0, start) + 1
                    out.append((e, f'{path}:{line}'))
    return out


def merged(files, entries):
    """Two old names of one file that get the same new name."""
    out = []
    idents = [e for e in entries if e.kind == 'ident' and e.plain() and not e.options & {'ok', 'free'}]
    by_new = collections.defaultdict(list)
    for e in idents:
        by_new[e.new].append(e)
    for new, same in by_new.items():
        if len({e.old for e in same}) < 2:
            continue
        for path, text in files.items():
            if not path.endswith('.rs'):
                continue
            olds = {e.old for e in same if e.covers(path) and re.search(rf'\b{e.old}\b', text)}
            if len(olds) > 1:
                out.append((new, sorted(olds), path))
    return out


def apply(root, path, dry, quiet):
    entries = read_map(path)
    files = dict(files_in(root))
    name = os.path.basename(path)
    clash = collections.OrderedDict()
    for e, new, where in collisions(files, entries):
        clash.setdefault((e, new), []).append(where)
    for (e, new), where in clash.items():
        shown = ', '.join(where[:3]) + (f' and {len(where) - 3} more' if len(where) > 3 else '')
        print(f'collision: {e.where}: {e.old} -> {new}: {new} is used in {shown}')
    for e, where in shadows(files, entries):
        print(f'shadow: {e.where}: {e.old} -> {e.new}: {where} has a variable {e.new}')
    for new, olds, where in merged(files, entries):
        print(f'collision: {name}: {" and ".join(olds)} both become {new} in {where}')
    changed = {}
    for p, text in files.items():
        mine = [e for e in entries if e.covers(p)]
        if p.endswith('.rs') and any('free' in e.options for e in mine):
            names = set(re.findall(IDENT, masked(text)))
            mine = [e for e in mine if 'free' not in e.options or e.new not in names or e.old not in names]
        new = text
        by = lambda *kinds: [e for e in mine if e.kind in kinds]
        if p.endswith('.proto') and by('proto'):
            new = ''.join(part if part.startswith('//') else words_in(part, by('proto'))
                          for part in re.split(r'(//[^\n]*)', new))
        for e in by('file'):
            if p.endswith('.rs') and stem(e.old) != stem(e.new):
                new = module_paths(new, stem(e.old), stem(e.new), e)
        if by('ident', 'code'):
            if p.endswith('.rs'):
                new = rust_idents(variants(new, by('ident')), Idents(by('ident', 'code')))
            elif p.endswith('.md'):
                new = Idents(by('ident')).prose(new)
        if by('phrase'):
            new = phrases_in(p, new, Phrases(by('phrase')))
        if by('word', 'conf'):
            new = words_in(new, by('word', 'conf'))
        if new != text:
            changed[p] = new
    # Distinctive identifiers are also renamed on the pages of the whole project, and moved paths everywhere.
    own = [e for e in entries if e.kind == 'ident' and e.plain() and distinctive(e.old) and 'code' not in e.options]
    moves = [e for e in entries if e.kind == 'file']
    for p, text in files.items():
        new = changed.get(p, text)
        if p.endswith('.md') and own:
            fresh = [e for e in own if not e.covers(p)]
            seen = collections.Counter(e.old for e in fresh)
            new = Idents([e for e in fresh if seen[e.old] == 1]).prose(new)
        for e in moves:
            for a, b in ((e.old, e.new), (short(e.old), short(e.new))):
                if a and b and '/' in a and a in new:
                    before = '(?<![A-Za-z0-9_])' if a == e.old else '(?<![A-Za-z0-9_./])'
                    new = re.sub(rf'{before}{re.escape(a)}(?![A-Za-z0-9_])', b, new)
        if new != text:
            changed[p] = new
    if not dry:
        for p, text in changed.items():
            with open(os.path.join(root, p), 'w', encoding='utf-8', newline='') as f:
                f.write(text)
    for e in moves:
        if move(root, e.old, e.new, dry, files):
            e.hits += 1
    total = sum(e.hits for e in entries)
    none = [e for e in entries if not e.hits and 'maybe' not in e.options]
    print(f'{name}: {len(entries)} entries, {total} replacements, {len(changed)} files, {len(none)} without hits, '
          f'{len(clash)} collisions')
    for e in none:
        print(f'no hits: {e.where}: {e.kind} {e.old} -> {e.new} in {e.scope}')
    if not quiet:
        for e in entries:
            if e.hits:
                print(f'{e.hits:6} {e.kind:6} {e.old} -> {e.new}')
    return len(clash), len(none)


def short(path):
    """A path as pages give it: below its crate's `src`."""
    return path.split('/src/', 1)[1] if '/src/' in path else None


def main():
    p = argparse.ArgumentParser(description=__doc__.split('\n')[0], epilog='See the head of the file for the format.')
    p.add_argument('root')
    p.add_argument('maps', nargs='*')
    p.add_argument('--all', action='store_true')
    p.add_argument('--dry-run', action='store_true')
    p.add_argument('--quiet', action='store_true', help='no count for each entry')
    a = p.parse_intermixed_args()
    root = os.path.realpath(a.root)
    if not os.path.exists(os.path.join(root, '.git')):
        sys.exit(f'{root} is not the root of a checkout')
    maps = sorted(glob.glob(os.path.join(HERE, 'maps', '*.tsv'))) if a.all else a.maps
    if not maps:
        sys.exit('name maps, or use --all')
    for m in maps:
        apply(root, m, a.dry_run, a.quiet)


if __name__ == '__main__':
    main()
