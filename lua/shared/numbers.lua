-- Numbers as text. Lua's tostring keeps 14 digits only; ids and times need all of theirs.

G.int = function(n) return string.format('%.0f', n) end

-- Scheduled score: priority * 2^42 + time in ms (data-model.md section 7).
G.BAND = 4398046511104

-- A whole non-negative number from a hash field, or the default where the field is absent or junk.
G.count_of = function(text, default)
  local n = text and tonumber(text)
  if not n or n ~= n or n < 0 then return default or 0 end
  return math.floor(n)
end
