"""A small lexer for Rust: splits a source text into (kind, text) pieces.

Kinds: code, string (with its quotes and prefix), char, line (// comment), block (/* comment */).
The pieces joined give the source text back.
"""
import re

_start = re.compile(
    r'''//|/\*|(?<![A-Za-z0-9_])(?:b|c)?r(?P<hash>\#*)"|(?<![A-Za-z0-9_])[bc]?"|"|(?<![A-Za-z0-9_])b'|\'''')


def pieces(src):
    out, pos, n, code_from = [], 0, len(src), 0

    def flush(upto):
        if upto > code_from:
            out.append(('code', src[code_from:upto]))

    while True:
        m = _start.search(src, pos)
        if not m:
            break
        s, tok = m.start(), m.group()
        if tok == '//':
            e = src.find('\n', s)
            e = n if e < 0 else e
            kind = 'line'
        elif tok == '/*':
            depth, e = 1, s + 2
            while depth and e < n:
                a, b = src.find('/*', e), src.find('*/', e)
                if b < 0:
                    e = n
                    break
                if 0 <= a < b:
                    depth, e = depth + 1, a + 2
                else:
                    depth, e = depth - 1, b + 2
            kind = 'block'
        elif tok.endswith('"') and m.group('hash') is not None:
            close = '"' + m.group('hash')
            e = src.find(close, m.end())
            e = n if e < 0 else e + len(close)
            kind = 'string'
        elif tok.endswith('"'):
            e = m.end()
            while e < n and src[e] != '"':
                e += 2 if src[e] == '\\' else 1
            e += 1
            kind = 'string'
        else:  # a quote: char literal or lifetime
            c = re.compile(r"b?'(?:\\(?:u\{[0-9a-fA-F_]+\}|x[0-9a-fA-F]{2}|.)|[^\\'])'", re.S).match(src, s)
            if not c:
                pos = m.end()
                continue
            e, kind = c.end(), 'char'
        flush(s)
        out.append((kind, src[s:e]))
        pos = code_from = e
    flush(n)
    return out
