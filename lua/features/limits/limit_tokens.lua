-- Tokens that jobs report, by windows of fixed length (api.md section 10): one counter a window, which ends by itself
-- (W72). A worker with such a limit looks before it takes, and adds what its jobs have reported when they end.

local function counter(q, duration, now)
  return q.P .. 'tpm:' .. G.int(math.floor(now / duration))
end

-- tokens: one number a finished row. What an earlier call has handed in already is not counted again.
G.count_tokens = function(q, duration, now, tokens, statuses)
  local sum = 0
  for i = 1, #statuses do
    local status = statuses[i]
    if status ~= G.ALREADY and status ~= G.GONE and status ~= G.STALE then sum = sum + G.num(tokens[i]) end
  end
  if sum == 0 then return end
  local key = counter(q, duration, now)
  local counted = redis.pcall('INCRBY', key, G.int(sum))
  if G.must_restart(counted) then redis.call('SET', key, G.int(sum)) end
  redis.call('PEXPIRE', key, G.int(duration))
end

-- ms until the next window where this one has no tokens left, else nil.
G.tokens_spent = function(q, max, duration, now)
  if G.num(redis.call('GET', counter(q, duration, now)) or '') < max then return nil end
  return duration - now % duration
end
