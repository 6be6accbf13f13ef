-- Return the time in epoch milliseconds for test builds: the value of the key `P:clock` if a test has set it, else
-- the server's time.
local TIME = G.rows.time

G.now = function(q)
  local set = redis.call('GET', q.P .. 'clock')
  if set then return tonumber(set) end
  local t = redis.call('TIME')
  return t[TIME.seconds] * 1000 + math.floor(t[TIME.microseconds] / 1000)
end
