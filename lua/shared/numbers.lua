-- Numbers as text. Lua's tostring keeps 14 digits only; ids and times need all of theirs.

G.int = function(n) return string.format('%.0f', n) end

-- Scheduled score: priority * 2^42 + time in ms (data-model.md section 7).
G.BAND = 4398046511104

local LARGEST = 9007199254740991 -- 2^53 - 1

-- A whole non-negative number from a hash field, or the default where the field is absent or junk.
G.count_of = function(text, default)
  local n = text and tonumber(text)
  if not n or n ~= n or n < 0 or n > LARGEST then return default or 0 end
  return math.floor(n)
end

-- HINCRBY by one; a field that holds junk starts anew, so that one bad record cannot stop whoever counts.
G.bump = function(key, field)
  local n = redis.pcall('HINCRBY', key, field, 1)
  if type(n) == 'number' then return n end
  redis.call('HSET', key, field, '1')
  return 1
end

G.num = function(text, default)
  local n = tonumber(text or '')
  if not n or n ~= n or n == math.huge or n == -math.huge then return default or 0 end
  return n
end

-- Numbers as a peer writes them: whole ones with all their digits.
G.text = function(n)
  if n == math.floor(n) then return G.int(n) end
  return tostring(n)
end

G.score = function(n)
  if n == math.floor(n) then return G.int(n) end
  return string.format('%.17g', n)
end
